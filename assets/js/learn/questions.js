// The questions of a lesson, from the prediction to the last check, and the outcome of its runs for each.

import { el, show, setText, showText } from "../shared/dom.js";
import { bytes, count, loss, number, percent, shortTime } from "../shared/format.js";
import { valueAt } from "../charts/traces.js";
import { AXES } from "../runs/compare_figure.js";
import { closeness, DrawnCurve, NUM_POINTS } from "./drawn_curve.js";
import { inlines } from "./text.js";
import { select } from "../charts/chart.js";
import { buttonRow, paragraph, textButton } from "../shared/widgets.js";

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

/** @type {Record<string, string>} Sentences about results that do not agree with the lesson. */
const SENTENCES = {
  otherwise: "The result of these runs differs from the lesson’s explanation.",
  doubtful: "These runs cannot show which answer is right:",
  unmeasured: "Not measured here:",
};
const UNRELIABLE = "These times are unreliable:";

/**
 * The index of the choice to mark as what happened; null if the runs cannot tell.
 * @param {Outcome | null | undefined} outcome
 * @param {number} right the answer that the lesson explains
 * @returns {number | null}
 */
export function measuredChoice(outcome, right) {
  if (!outcome || outcome.verdict === "unchecked") return right;
  return outcome.happened;
}

/** The measurements behind an answer or a finding, reasons for doubt, and a button to measure again. */
export class OutcomeNote {
  /** @param {(() => void) | null} onAgain */
  constructor(onAgain) {
    this.text = el("p", { class: "ddp-lesson-outcome" });
    this.reasons = el("ul", {});
    this.numbers = paragraph("hint");
    this.again = textButton("Measure again", onAgain);
    this.hasAgain = onAgain !== null;
    this.element = el("div", { class: "ddp-lesson-note", role: "status", hidden: true }, this.text, this.reasons, this.numbers, this.again);
  } // prettier-ignore

  /**
   * @param {Outcome} outcome
   * @param {string} [sentence] replaces the sentence about a question
   */
  update({ verdict, reasons, numbers }, sentence = SENTENCES[verdict] ?? "") {
    const isDoubtful = verdict === "otherwise" || (verdict !== "unmeasured" && reasons.length > 0);
    this.element.dataset.verdict = verdict;
    showText(this.text, sentence);
    this.reasons.replaceChildren(...reasons.map((reason) => el("li", {}, reason)));
    show(this.reasons, reasons.length > 0);
    // A failure is already shown in the row of the run.
    const told = numbers.filter(({ unit }) => unit !== "flag");
    showText(this.numbers, told.length > 0 ? `Measured: ${told.map(measuredText).join("; ")}.` : "");
    show(this.again, isDoubtful && this.hasAgain);
    show(this.element, sentence !== "" || reasons.length > 0 || told.length > 0);
  }
}

function measuredText({ words: text, run, against, value, unit }) {
  const compared = against === null ? "" : ` against “${against}”`;
  return `${text} of “${run}”${compared}: ${UNITS[unit](value)}`;
}

// The prediction of a lesson: chosen or drawn, then locked before anything runs.

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

let numQuestions = 0;

/** A group of radio buttons, labelled with the question. */
class Choices {
  /**
   * @param {{ question: any[], choices: any[][] }} question
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
    this.labels = choices.map((text, index) =>
      el("label", { class: "ddp-choice" }, this.inputs[index], el("span", {}, inlines(text))),
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
      const text = (isMeasured ? MEASURED : OUTCOMES)[`${isRight}, ${isChosen}`];
      label.append(el("span", { class: "ddp-outcome" }, text));
    });
  }
}

export class Prediction {
  /**
   * @param {import("./progress.js").Progress} progress
   * @param {() => void} onChange
   * @param {() => void} onLock
   * @param {(() => void) | null} onAgain runs the lesson's runs again
   */
  constructor(question, progress, onChange, onLock, onAgain = null) {
    this.question = question;
    this.progress = progress;
    this.isDrawn = question.kind === "curve";
    const take = (prediction) => {
      progress.prediction = prediction;
      this.button.disabled = false;
      onChange();
    };
    this.drawn = this.isDrawn ? new DrawnCurve(describeDrawing(question), progress.prediction, take) : null;
    this.choices = this.isDrawn ? null : new Choices(question, progress.prediction, take);
    const disabled = progress.prediction === null;
    this.button = textButton("Lock my prediction", onLock, "main", { disabled });
    this.note = paragraph("hint", "It cannot be changed afterwards.");
    this.outcome = el("p", { class: "ddp-lesson-outcome", role: "status", hidden: true });
    this.measured = new OutcomeNote(onAgain);
    this.because = el("p", { hidden: true }, this.isDrawn ? [] : inlines(question.because));
    this.element = el(
      "div",
      { class: "ddp-lesson-prediction" },
      this.isDrawn ? el("p", { class: "ddp-lesson-question" }, inlines(question.question)) : null,
      (this.drawn ?? this.choices)?.element,
      buttonRow(this.button, this.note),
      this.outcome,
      this.measured,
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
   * @param {Outcome | null} [outcome] the measured choice
   */
  reveal(trace, outcome = null) {
    show(this.note, false);
    if (this.choices) {
      const { prediction } = this.progress;
      const right = measuredChoice(outcome, this.question.right);
      this.choices.reveal(right, prediction, outcome?.verdict === "otherwise");
      showText(this.outcome, right === null ? "" : predictionText(outcome, right, prediction));
      if (outcome) this.measured.update(outcome);
      show(this.because, right === this.question.right);
      return;
    }
    show(this.outcome, true);
    if (trace === null) return;
    const pairs = this.points()
      .map(([x, y]) => [y, valueAt(trace, x)])
      .filter(([, measured]) => measured !== null);
    const distance = pairs.reduce((sum, [y, measured]) => sum + Math.abs(y - measured), 0) / pairs.length;
    const share = distance / (this.question.high - this.question.low);
    setText(
      this.outcome,
      pairs.length === 0
        ? "There is no measurement to compare it with."
        : `${closeness(share)}: your curve is ${number(distance, 2)} away on average.`,
    );
  }

  /** The points of the drawn curve as [x, value] pairs. */
  points() {
    const { until } = this.question;
    return this.progress.prediction.map((value, index) => [(index / (NUM_POINTS - 1)) * until, value]);
  }
}

function predictionText(outcome, right, prediction) {
  if (outcome && outcome.verdict !== "unchecked") {
    return prediction === right ? "Your prediction was correct." : "The result differs from your prediction.";
  }
  return prediction === right ? "Your prediction is the lesson’s answer." : "The lesson’s answer is different.";
} // prettier-ignore

/** The description of a drawing, with its axes as text. */
export function describeDrawing(question) {
  const { curve, axis } = question;
  const text = curve === "loss" ? "training loss" : curve.replace("metric:", "validation ");
  return { ...question, curve: text.replaceAll("_", " "), axisText: AXES[axis] };
}

// The questions at the end of a lesson; some require another run with a changed setting.

export class Question {
  /**
   * @param {any} question
   * @param {number} place index of the question
   * @param {import("./progress.js").Progress} progress
   * @param {{ onAnswer: () => void, onAttempt: (number: number, choice: string) => Promise<void> }} does
   */
  constructor(question, place, progress, { onAnswer, onAttempt }) {
    this.question = question;
    this.number = place;
    this.progress = progress;
    this.because = el(
      "p",
      { class: "ddp-lesson-because", role: "status", hidden: true },
      inlines(question.because),
    );
    this.note = new OutcomeNote(null);
    this.outcome = null;
    this.runs = el("ul", { class: "ddp-lesson-runs" });
    const attempt = question.attempt ? [this.attemptBox(question.attempt, onAttempt), this.runs] : [];
    const answer = (index) => {
      progress.answers[place] = index;
      this.reveal();
      onAnswer();
    };
    this.choices = new Choices(question, progress.answers[place] ?? null, answer, attempt);
    this.element = el(
      "div",
      { class: "ddp-card ddp-lesson-one-question" },
      this.choices,
      this.note,
      this.because,
    );
    if (place in progress.answers) this.reveal();
  }

  attemptBox({ label, choices }, onAttempt) {
    const names = Object.keys(choices);
    let chosen = names[0];
    const start = async () => {
      this.start.disabled = true;
      await onAttempt(this.number, chosen);
      this.start.disabled = false;
    };
    this.start = textButton("Run it", start, "main");
    const choice = select(
      label,
      names.map((name) => [name, name]),
      chosen,
      (name) => (chosen = name),
    );
    return el(
      "div",
      { class: "ddp-lesson-attempt" },
      el("label", {}, el("span", {}, label), choice),
      this.start,
    );
  }

  /**
   * @param {any[]} runs the runs started for this question; if it has an attempt, one must have ended before
   * it can be answered
   * @param {Outcome | null} outcome null until the runs were compared
   */
  update(runs, outcome) {
    if (outcome !== this.outcome) {
      this.outcome = outcome;
      if (this.number in this.progress.answers) this.reveal();
    }
    const isAnswered = this.number in this.progress.answers;
    const isOpen = !this.question.attempt || runs.some(({ isOver, isGone }) => isOver && !isGone);
    if (!isAnswered) this.choices.setDisabled(!isOpen);
    if (this.start && !this.start.dataset.busy) this.start.disabled = runs.some(({ isOver }) => !isOver);
  }

  /** Shows the given answer and, after the runs are compared, the measured one. */
  reveal() {
    const { outcome } = this;
    const answer = this.progress.answers[this.number];
    const isKnown = this.question.measured.length === 0 || outcome !== null;
    // Without a measurement the lesson's answer counts.
    const right =
      outcome?.verdict === "unmeasured" ? this.question.right : measuredChoice(outcome, this.question.right);
    this.choices.reveal(isKnown ? right : null, answer, outcome?.verdict === "otherwise");
    if (outcome) this.note.update(outcome);
    show(this.because, isKnown && right === this.question.right);
  }
}

// The texts around a picture: above it a hint where to look, below it the finding of the runs.

export class Finding {
  /**
   * @param {any} picture
   * @param {(() => void) | null} onAgain
   */
  constructor({ see, finding }, onAgain) {
    this.hint = el("p", { class: "ddp-lesson-look", hidden: true }, inlines(see));
    this.hasHint = see.length > 0;
    this.text = el("p", { class: "ddp-lesson-because", hidden: true }, inlines(finding));
    this.hasText = finding.length > 0;
    this.note = new OutcomeNote(onAgain);
  }

  /** Adds the texts to a picture and returns its element. */
  around({ element }) {
    element.prepend(this.hint);
    element.append(this.text, this.note.element);
    return element;
  }

  /** @param {Outcome | null} outcome null while the runs are live */
  update(outcome) {
    show(this.hint, outcome !== null && this.hasHint);
    show(this.text, outcome?.verdict === "explained" && this.hasText);
    if (outcome === null) {
      show(this.note.element, false);
      return;
    }
    const isDisturbed = outcome.verdict === "explained" && outcome.reasons.length > 0;
    const isUnreliable = isDisturbed || outcome.verdict === "doubtful";
    this.note.update(outcome, isUnreliable ? UNRELIABLE : undefined);
  }
}
