// A run's state as a pill, as every page shows it.

import { el, icon } from "./dom.js";
import { state as stateWords } from "./format.js";

/** A pill with a run's state: colour, shape and word. */
export class StatePill {
  constructor() {
    this.element = el("span", { class: "ddp-pill", role: "status", "aria-live": "polite" });
  }

  update(state) {
    if (this.element.dataset.state === state) return;
    this.element.dataset.state = state;
    const [shape, word] = stateWords(state);
    this.element.replaceChildren(icon(shape), el("span", {}, word));
  }
}
