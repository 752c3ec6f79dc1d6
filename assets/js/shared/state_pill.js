// A run's state as a pill, as every page shows it.

import { el, icon } from "./dom.js";
import { state as stateWords } from "./format.js";

/** A pill with a run's state: colour, shape and word. */
export class StatePill {
  constructor() {
    this.element = el("span", { class: "ddp-pill", role: "status", "aria-live": "polite" });
  }

  /** `isLossNaN`: a run that trains on, or has ended, with a loss that is no number does not look well. */
  update(state, isLossNaN = false) {
    const { dataset } = this.element;
    if (dataset.state === state && "nan" in dataset === isLossNaN) return;
    dataset.state = state;
    if (isLossNaN) dataset.nan = "";
    else delete dataset.nan;
    const [shape, word] = stateWords(state);
    this.element.replaceChildren(
      icon(isLossNaN ? "warning" : shape),
      el("span", {}, isLossNaN ? `${word}, loss is NaN` : word),
    );
  }
}
