// What the model says now: predicted images, or text it writes.

import { el, icon, section, setText, show } from "./dom.js";
import { count, percent } from "./format.js";

export class SamplePanel {
  constructor() {
    this.caption = el("p", { class: "ddp-caption" }, "\u00a0");
    this.empty = el("p", { class: "ddp-empty" }, "Appears soon after training has begun.");
    this.text = el("blockquote", { class: "ddp-sample-text", hidden: true });
    this.images = el("div", { class: "ddp-sample-images", hidden: true });
    this.figures = [];
    this.element = section("What the model says now", "sample", this.caption, this.empty, this.text, this.images);
  }

  update(sample) {
    if (!sample) return;
    const isText = sample.type === "text";
    show(this.empty, false);
    show(this.text, isText);
    show(this.images, !isText);
    if (isText) {
      setText(this.caption, `Text the model wrote by itself after step ${count(sample.step)}, one character at a time.`);
      setText(this.text, sample.content.trim());
      return;
    }
    const numRight = sample.content.filter((image) => image.prediction === image.label).length;
    setText(
      this.caption,
      `Validation images after step ${count(sample.step)}: ${numRight} of ${sample.content.length} right. The percentage says how sure the model is.`,
    );
    sample.content.forEach((image, index) => this.figure(index).set(image));
  }

  figure(index) {
    if (!this.figures[index]) {
      this.figures[index] = new Picture();
      this.images.append(this.figures[index].element);
    }
    return this.figures[index];
  }
}

class Picture {
  constructor() {
    this.canvas = el("canvas", { role: "img" });
    this.verdict = el("span", { class: "ddp-verdict" });
    this.prediction = el("strong", {});
    this.truth = el("span", { class: "ddp-truth" });
    this.element = el(
      "figure",
      { class: "ddp-picture" },
      this.canvas,
      el("figcaption", {}, el("span", { class: "ddp-says" }, this.verdict, this.prediction), this.truth),
    );
  }

  set(image) {
    const isRight = image.prediction === image.label;
    this.paint(image);
    if (this.element.dataset.right !== String(isRight)) {
      this.element.dataset.right = String(isRight);
      this.verdict.replaceChildren(icon(isRight ? "check" : "cross"));
    }
    setText(this.prediction, image.prediction);
    const sure = percent(image.probability, 0);
    setText(this.truth, isRight ? `${sure}, right` : `${sure}, is ${image.label}`);
    this.canvas.setAttribute("aria-label", `Image of ${image.label}, predicted ${image.prediction}`);
  }

  paint({ pixels, width, height }) {
    // The same images come every time: nothing to paint again.
    if (this.painted === pixels) return;
    this.painted = pixels;
    const grey = Uint8Array.from(atob(pixels), (character) => character.charCodeAt(0));
    const context = this.canvas.getContext("2d");
    this.canvas.width = width;
    this.canvas.height = height;
    const picture = context.createImageData(width, height);
    grey.forEach((value, index) => picture.data.set([value, value, value, 255], index * 4));
    context.putImageData(picture, 0, 0);
  }
}
