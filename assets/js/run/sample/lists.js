// Samples shown as lists: images, texts and table rows, each with the model's prediction.

import { columnHeads, el, icon, setText, bytesOf } from "../../shared/dom.js";
import { count, number, percent } from "../../shared/format.js";

const SURE = "The percentage says how sure the model is.";

/** "9 of 12 right". */
function score(answers) {
  const numRight = answers.filter((answer) => answer.prediction === answer.label).length;
  return `${numRight} of ${answers.length} right`;
}

/** The verdict on a prediction: right or wrong, the predicted class, its probability, and the truth. */
class Verdict {
  /** @param {boolean} isNarrow puts the percentage on the second line */
  constructor(isNarrow = false) {
    this.isNarrow = isNarrow;
    this.mark = el("span", { class: "ddp-verdict" });
    this.prediction = el("strong", {});
    this.truth = el("span", { class: "ddp-truth" });
    this.elements = [el("span", { class: "ddp-says" }, this.mark, this.prediction), this.truth];
  }

  /** Returns "true" or "false", for the `data-right` attribute of the surrounding element. */
  set(answer) {
    const isRight = answer.prediction === answer.label;
    if (this.isRight !== isRight) {
      this.isRight = isRight;
      this.mark.replaceChildren(icon(isRight ? "check" : "cross"));
    }
    const predictionText = isRight ? answer.prediction : `pred: ${answer.prediction}`;
    const sure = `(${percent(answer.probability, 0)})`;
    const truth = isRight ? "right" : `truth: ${answer.label}`;
    setText(this.prediction, this.isNarrow ? predictionText : `${predictionText} ${sure}`);
    setText(this.truth, this.isNarrow ? `${sure}, ${truth}` : truth);
    return String(isRight);
  }
}

/** A list of samples; each is made on first use, and has an `element` and `set(sample)`. */
class SampleList {
  /** `parent` holds the samples; `element` is the whole view. */
  constructor(noun, make, parent, element = parent) {
    this.noun = noun;
    this.make = make;
    this.parent = parent;
    this.element = element;
    this.made = [];
  }

  /** Returns the caption. */
  update(samples, step) {
    samples.forEach((sample, index) => {
      if (!this.made[index]) {
        this.made[index] = this.make();
        this.parent.append(this.made[index].element);
      }
      this.made[index].set(sample);
    });
    for (const surplus of this.made.splice(samples.length)) surplus.element.remove();
    return `Validation ${this.noun} after step ${count(step)}: ${score(samples)}. ${SURE}`;
  }
}

export const makeImagesView = () =>
  new SampleList("images", () => new Picture(), el("div", { class: "ddp-sample-images" }));

export const makeTextsView = () =>
  new SampleList("texts", () => new Text(), el("ul", { class: "ddp-sample-texts" }));

class Picture {
  constructor() {
    this.canvas = el("canvas", { role: "img" });
    this.verdict = new Verdict(true);
    this.element = el(
      "figure",
      { class: "ddp-picture" },
      this.canvas,
      el("figcaption", {}, ...this.verdict.elements),
    );
  }

  set(image) {
    this.paint(image);
    this.element.dataset.right = this.verdict.set(image);
    this.canvas.setAttribute("aria-label", `Image of ${image.label}, predicted ${image.prediction}`);
  }

  paint(image) {
    // The images are the same each time: paint them once.
    if (this.painted === image.pixels) return;
    this.painted = image.pixels;
    paintImage(this.canvas, image);
  }
}

/** Paints an image whose `pixels` are base64 of its bytes, row by row. */
export function paintImage(canvas, { pixels, width, height, channels = 1 }) {
  const values = bytesOf(pixels);
  const context = canvas.getContext("2d");
  canvas.width = width;
  canvas.height = height;
  const picture = context.createImageData(width, height);
  for (let index = 0; index < width * height; index += 1) {
    const start = index * channels;
    const colour =
      channels === 3 ? values.subarray(start, start + 3) : [values[start], values[start], values[start]];
    picture.data.set(colour, index * 4);
    picture.data[index * 4 + 3] = 255;
  }
  context.putImageData(picture, 0, 0);
}

class Text {
  constructor() {
    this.text = el("p", { dir: "auto" });
    this.verdict = new Verdict();
    this.element = el("li", {}, this.text, el("p", { class: "ddp-answer" }, ...this.verdict.elements));
  }

  set(text) {
    setText(this.text, text.text);
    this.element.dataset.right = this.verdict.set(text);
  }
}

export class RowsView extends SampleList {
  constructor() {
    const [head, body] = [el("tr", {}), el("tbody", {})];
    const table = el("table", { class: "ddp-table" }, el("thead", {}, head), body);
    const aria = { tabindex: 0, role: "region", "aria-label": "Rows" };
    super("rows", () => new Row(), body, el("div", { class: "ddp-sample-rows", ...aria }, table));
    this.head = head;
  }

  /** @override */
  update({ columns, rows }, step) {
    const isNumber = rows.length > 0 && "target" in rows[0];
    const headings = isNumber ? ["Actual", "Predicted", "Off by"] : ["Predicted", "Truth"];
    const names = [...headings, ...columns];
    if (this.names !== names.join("\n")) {
      this.names = names.join("\n");
      this.head.replaceChildren(...columnHeads(names));
    }
    const text = super.update(rows, step);
    if (!isNumber) return text;
    const off = rows.reduce((sum, row) => sum + Math.abs(row.error), 0) / Math.max(1, rows.length);
    return `Validation rows after step ${count(step)}: off by ${number(off, 3)} on average.`;
  }
}

class Row {
  constructor() {
    this.element = el("tr", {});
    this.cells = [];
    this.verdict = new Verdict();
  }

  set(row) {
    const inputs = row.inputs.map((value) => (typeof value === "string" ? value : number(value)));
    const isNumber = "target" in row;
    if (this.cells.length === 0) this.build(inputs.length, isNumber);
    const text = isNumber
      ? [number(row.target), number(row.prediction), signed(row.error), ...inputs]
      : inputs;
    this.cells.forEach((cell, index) => setText(cell, text[index]));
    if (!isNumber) this.element.dataset.right = this.verdict.set(row);
  }

  build(numInputs, isNumber) {
    this.cells = Array.from({ length: numInputs + (isNumber ? 3 : 0) }, () => el("td", {}));
    const verdict = isNumber ? [] : this.verdict.elements.map((element) => el("td", {}, element));
    this.element.append(...verdict, ...this.cells);
  }
}

const signed = (value) => (value > 0 ? `+${number(value)}` : number(value).replace("-", "−"));
