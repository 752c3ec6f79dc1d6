// A run's state as a pill, shared by all pages.

import { el, icon, setAttribute } from "./dom.js";
import { state as stateWords } from "./format.js";

/** A pill with a run's state: colour, shape and word. */
export class StatePill {
  constructor() {
    this.element = el("span", { class: "ddp-pill", role: "status", "aria-live": "polite" });
  }

  /**
   * `isLossNaN`: the run trains on, or has ended, with a loss of NaN, and is marked as a warning. `detail`:
   * the reason why the processes of a live run are paused, or empty; its first word replaces the state.
   */
  update(state, isLossNaN = false, detail = "") {
    const { dataset } = this.element;
    if (dataset.state === state && "nan" in dataset === isLossNaN && this.detail === detail) return;
    dataset.state = state;
    this.detail = detail;
    if (isLossNaN) dataset.nan = "";
    else delete dataset.nan;
    setAttribute(this.element, "title", detail || null);
    const [shape, word] = detail ? [stateWords("paused")[0], detail.split(" ")[0]] : stateWords(state);
    this.element.replaceChildren(
      icon(isLossNaN ? "warning" : shape),
      el("span", {}, isLossNaN ? `${word}, loss is NaN` : word),
    );
  }
}
