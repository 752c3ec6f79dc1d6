// The parts of a lesson as a row that shows the progress.

import { el, setAttribute } from "../shared/dom.js";

const TITLES = { predict: "Predict", run: "Run", see: "See", explain: "Explain", check: "Check" };

/** The parts in order. */
export const STAGES = Object.keys(TITLES);

export class Way {
  constructor() {
    this.marks = Object.values(TITLES).map((title) => el("li", {}, title));
    this.element = el("ol", { class: "ddp-lesson-way", "aria-label": "The parts of the lesson" }, this.marks);
  }

  /**
   * @param {string} stage the current part, or "done"
   * @param {number} numOpen the number of parts that are done
   */
  update(stage, numOpen) {
    STAGES.forEach((name, index) => {
      const isNow = stage === name;
      const before = index < numOpen ? "done" : "open";
      this.marks[index].dataset.state = isNow ? "now" : before;
      setAttribute(this.marks[index], "aria-current", isNow ? "step" : null);
    });
  }
}
