// The outcome of a lesson's runs for an answer or a finding, as compared by the server.

import { el, makeButton, show } from "../../shared/dom.js";
import { bytes, count, loss, number, percent, shortTime } from "../../shared/format.js";

/**
 * @typedef {object} Outcome
 * @property {"explained" | "otherwise" | "doubtful" | "unmeasured" | "unchecked"} verdict
 * @property {number | null} happened the index of the choice that was measured
 * @property {string[]} reasons why the result is uncertain
 * @property {{ words: string, run: string, against: string | null, value: number, unit: string }[]} numbers
 * the measurements that were compared
 */

/** @type {Record<string, (value: number) => string>} */
const UNITS = {
  loss,
  seconds: shortTime,
  per_second: (value) => `${number(value, 3)} samples per second`,
  times: (value) => `${number(value, 3)} ×`,
  bytes,
  share: (value) => percent(value, 1),
  count,
  exact: String,
  number: (value) => number(value, 3),
};

/** A sentence about the result of a question; empty if it agrees with the lesson. */
const SENTENCES = {
  explained: "",
  otherwise: "The result of these runs differs from the lesson’s explanation.",
  doubtful: "These runs cannot show which answer is right:",
  unmeasured: "Not measured here:",
  unchecked: "",
};

/**
 * The index of the choice to mark as what happened; null if the runs cannot tell.
 * @param {Outcome | null | undefined} outcome
 * @param {number} right the answer that the lesson explains
 * @returns {number | null}
 */
export function happened(outcome, right) {
  if (!outcome || outcome.verdict === "unchecked") return right;
  return outcome.happened;
}

/** The measurements behind an answer or a finding, reasons for doubt, and a button to measure again. */
export class OutcomeNote {
  /** @param {(() => void) | null} onAgain */
  constructor(onAgain) {
    this.words = el("p", { class: "ddp-lesson-outcome" });
    this.reasons = el("ul", {});
    this.numbers = el("p", { class: "ddp-hint" });
    this.again = makeButton({ class: "ddp-button", onclick: onAgain }, "Measure again");
    this.hasAgain = onAgain !== null;
    this.element = el("div", { class: "ddp-lesson-note", role: "status", hidden: true }, this.words, this.reasons, this.numbers, this.again);
  } // prettier-ignore

  /**
   * @param {Outcome} outcome
   * @param {string} [sentence] replaces the sentence about a question
   */
  update({ verdict, reasons, numbers }, sentence = SENTENCES[verdict]) {
    const isDoubtful = verdict === "otherwise" || (verdict !== "unmeasured" && reasons.length > 0);
    this.element.dataset.verdict = verdict;
    this.words.textContent = sentence;
    show(this.words, sentence !== "");
    this.reasons.replaceChildren(...reasons.map((reason) => el("li", {}, reason)));
    show(this.reasons, reasons.length > 0);
    // A failure is already shown in the row of the run.
    const told = numbers.filter(({ unit }) => unit !== "flag");
    this.numbers.textContent = told.length > 0 ? `Measured: ${told.map(measured).join("; ")}.` : "";
    show(this.numbers, told.length > 0);
    show(this.again, isDoubtful && this.hasAgain);
    show(this.element, sentence !== "" || reasons.length > 0 || told.length > 0);
  }
}

function measured({ words, run, against, value, unit }) {
  const compared = against === null ? "" : ` against “${against}”`;
  return `${words} of “${run}”${compared}: ${UNITS[unit](value)}`;
}
