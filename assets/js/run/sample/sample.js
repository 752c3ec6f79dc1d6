// The model's current predictions, in the form of its task: text, images, table rows, decision regions or a
// curve.

import { el, section, setText, show } from "../../shared/dom.js";
import { count } from "../../shared/format.js";
import { CurveView, SurfaceView } from "./drawings.js";
import { ImagesView, RowsView, TextsView } from "./lists.js";

// Each view has an `element` and an `update(content, step)` that returns the caption.
const VIEWS = {
  text: () => new TextView(),
  images: () => new ImagesView(),
  texts: () => new TextsView(),
  rows: () => new RowsView(),
  surface: () => new SurfaceView(),
  curve: () => new CurveView(),
};

export class SamplePanel {
  constructor() {
    this.caption = el("p", { class: "ddp-caption" }, "\u00a0");
    this.empty = el("p", { class: "ddp-empty" }, "Appears soon after training starts.");
    this.place = el("div", { class: "ddp-sample-place" });
    this.element = section("What the model predicts now", "sample", this.caption, this.empty, this.place);
  }

  update(sample) {
    if (!sample || !(sample.type in VIEWS)) return;
    show(this.empty, false);
    if (this.type !== sample.type) {
      this.type = sample.type;
      this.view = VIEWS[sample.type]();
      this.place.replaceChildren(this.view.element);
    }
    setText(this.caption, this.view.update(sample.content, sample.step));
  }
}

class TextView {
  constructor() {
    this.element = el("blockquote", { class: "ddp-sample-text", dir: "auto" });
  }

  update(text, step) {
    setText(this.element, text.trim());
    return `Text that the model generated after step ${count(step)}.`;
  }
}
