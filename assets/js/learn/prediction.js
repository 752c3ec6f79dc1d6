// The prediction of a lesson: chosen or drawn, then locked before anything runs.

import { el, makeButton, setText, show } from "../shared/dom.js";
import { number } from "../shared/format.js";
import { valueAt } from "../charts/traces.js";
import { AXES } from "../runs/compare/figure.js";
import { DrawnCurve, NUM_POINTS } from "./drawn_curve.js";
import { happened, OutcomeNote } from "./pictures/outcome.js";
import { inlines } from "./text.js";

// Keys: whether a choice is the right one, whether it was chosen.
const OUTCOMES = {
  "true, true": "your answer, right",
  "true, false": "the right answer",
  "false, true": "your answer",
};
// The same for a choice that the runs showed although the lesson explains another one.
const MEASURED = {
  ...OUTCOMES,
  "true, true": "your answer, and what these runs showed",
  "true, false": "what these runs showed",
};
// Keys: the mean distance of the drawn curve from the measured one, as a fraction of the axis.
/** @type {[number, string][]} */
const CLOSENESS = [
  [0.06, "Very close"],
  [0.15, "The right shape"],
  [Infinity, "A different shape"],
];

let numQuestions = 0;

/** A group of radio buttons, labelled with the question. */
export class Choices {
  /**
   * @param {{ question: any[], choices: any[][] }} about
   * @param {number | null} chosen
   * @param {(index: number) => void} onChoose
   * @param {HTMLElement[]} before elements between the question and the choices
   */
  constructor({ question, choices }, chosen, onChoose, before = []) {
    // Names must be unique: radio buttons with the same name would form one group.
    numQuestions += 1;
    const name = `ddp-choice-${numQuestions}`;
    this.inputs = choices.map((_, index) =>
      el("input", {
        type: "radio",
        name,
        value: index,
        checked: index === chosen,
        onchange: () => onChoose(index),
      }),
    );
    this.labels = choices.map((words, index) =>
      el("label", { class: "ddp-choice" }, this.inputs[index], el("span", {}, inlines(words))),
    );
    this.element = el(
      "fieldset",
      { class: "ddp-choices" },
      el("legend", {}, inlines(question)),
      before,
      this.labels,
    );
  }

  setDisabled(isDisabled) {
    for (const input of this.inputs) input.disabled = isDisabled;
  }

  /**
   * Marks the right choice, also as text; can be called again.
   * @param {number | null} right null if unknown: then only the given answer is marked
   * @param {number | null} chosen
   * @param {boolean} isMeasured true if `right` comes from the runs, not from the lesson
   */
  reveal(right, chosen, isMeasured = false) {
    this.setDisabled(true);
    this.labels.forEach((label, index) => {
      const [isRight, isChosen] = [index === right, index === chosen];
      this.inputs[index].checked = isChosen;
      label.querySelector(".ddp-outcome")?.remove();
      delete label.dataset.outcome;
      if (isRight) label.dataset.outcome = "right";
      else if (isChosen) label.dataset.outcome = right === null ? "given" : "wrong";
      if (!isRight && !isChosen) return;
      const words = (isMeasured ? MEASURED : OUTCOMES)[`${isRight}, ${isChosen}`];
      label.append(el("span", { class: "ddp-outcome" }, words));
    });
  }
}

export class Prediction {
  /**
   * @param {any} about
   * @param {import("./progress.js").Progress} progress
   * @param {() => void} onChange
   * @param {() => void} onLock
   * @param {(() => void) | null} onAgain runs the lesson's runs again
   */
  constructor(about, progress, onChange, onLock, onAgain = null) {
    this.about = about;
    this.progress = progress;
    this.isDrawn = about.kind === "curve";
    const take = (prediction) => {
      progress.prediction = prediction;
      this.button.disabled = false;
      onChange();
    };
    this.drawn = this.isDrawn
      ? new DrawnCurve(
          { ...about, curve: curveWords(about.curve), axisWords: AXES[about.axis] },
          progress.prediction,
          take,
        )
      : null;
    this.choices = this.isDrawn ? null : new Choices(about, progress.prediction, take);
    this.button = makeButton(
      { class: "ddp-button ddp-button-main", disabled: progress.prediction === null, onclick: onLock },
      "Lock my prediction",
    );
    this.note = el("p", { class: "ddp-hint" }, "It cannot be changed afterwards.");
    this.outcome = el("p", { class: "ddp-lesson-outcome", role: "status", hidden: true });
    this.measured = new OutcomeNote(onAgain);
    this.because = el("p", { hidden: true }, this.isDrawn ? [] : inlines(about.because));
    this.element = el(
      "div",
      { class: "ddp-lesson-prediction" },
      this.isDrawn ? el("p", { class: "ddp-lesson-question" }, inlines(about.question)) : null,
      (this.drawn ?? this.choices)?.element,
      el("div", { class: "ddp-buttons" }, this.button, this.note),
      this.outcome,
      this.measured.element,
      this.because,
    );
    if (progress.isLocked) this.lock();
  }

  lock() {
    this.drawn?.lock();
    this.choices?.setDisabled(true);
    show(this.button, false);
    setText(this.note, "Your prediction is locked.");
  }

  /**
   * Shows how the result differs from the prediction; called again after new measurements.
   * @param {import("../charts/traces.js").Trace | null} trace the measured curve
   * @param {import("./pictures/outcome.js").Outcome | null} [outcome] the measured choice
   */
  reveal(trace, outcome = null) {
    show(this.note, false);
    if (this.choices) {
      const { prediction } = this.progress;
      const right = happened(outcome, this.about.right);
      this.choices.reveal(right, prediction, outcome?.verdict === "otherwise");
      setText(this.outcome, right === null ? "" : predictionWords(outcome, right, prediction));
      show(this.outcome, right !== null);
      if (outcome) this.measured.update(outcome);
      show(this.because, right === this.about.right);
      return;
    }
    show(this.outcome, true);
    if (trace === null) return;
    const pairs = this.points()
      .map(([x, y]) => [y, valueAt(trace, x)])
      .filter(([, measured]) => measured !== null);
    const distance = pairs.reduce((sum, [y, measured]) => sum + Math.abs(y - measured), 0) / pairs.length;
    const share = distance / (this.about.high - this.about.low);
    const [, words] = CLOSENESS.find(([most]) => share < most) ?? [];
    setText(
      this.outcome,
      pairs.length === 0
        ? "There is no measurement to compare it with."
        : `${words}: your curve is ${number(distance, 2)} away on average.`,
    );
  }

  /** The points of the drawn curve as [x, value] pairs. */
  points() {
    const { until } = this.about;
    return this.progress.prediction.map((value, index) => [(index / (NUM_POINTS - 1)) * until, value]);
  }
}

function predictionWords(outcome, right, prediction) {
  if (outcome && outcome.verdict !== "unchecked") {
    return prediction === right ? "Your prediction was correct." : "The result differs from your prediction.";
  }
  return prediction === right ? "Your prediction is the lesson’s answer." : "The lesson’s answer is different.";
} // prettier-ignore

/** The label of a curve in the drawing. */
function curveWords(curve) {
  return curve === "loss" ? "training loss" : curve.replace("metric:", "validation ").replaceAll("_", " ");
}
