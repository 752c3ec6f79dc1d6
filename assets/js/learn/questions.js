// The questions at the end of a lesson; some require another run with a changed setting.

import { select } from "../charts/chart.js";
import { el, makeButton, show } from "../shared/dom.js";
import { happened, OutcomeNote } from "./pictures/outcome.js";
import { Choices } from "./prediction.js";
import { inlines } from "./text.js";

export class Question {
  /**
   * @param {any} about
   * @param {number} number index of the question
   * @param {import("./progress.js").Progress} progress
   * @param {{ onAnswer: () => void, onAttempt: (number: number, choice: string) => Promise<void> }} does
   */
  constructor(about, number, progress, { onAnswer, onAttempt }) {
    this.about = about;
    this.number = number;
    this.progress = progress;
    this.because = el(
      "p",
      { class: "ddp-lesson-because", role: "status", hidden: true },
      inlines(about.because),
    );
    this.note = new OutcomeNote(null);
    this.outcome = null;
    this.runs = el("ul", { class: "ddp-lesson-runs" });
    const attempt = about.attempt ? [this.attemptBox(about.attempt, onAttempt), this.runs] : [];
    const answer = (index) => {
      progress.answers[number] = index;
      this.reveal();
      onAnswer();
    };
    this.choices = new Choices(about, progress.answers[number] ?? null, answer, attempt);
    this.element = el(
      "div",
      { class: "ddp-card ddp-lesson-one-question" },
      this.choices.element,
      this.note.element,
      this.because,
    );
    if (number in progress.answers) this.reveal();
  }

  attemptBox({ label, choices }, onAttempt) {
    const names = Object.keys(choices);
    let chosen = names[0];
    this.start = makeButton({ class: "ddp-button ddp-button-main" }, "Run it");
    this.start.addEventListener("click", async () => {
      this.start.disabled = true;
      await onAttempt(this.number, chosen);
      this.start.disabled = false;
    });
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
   * @param {import("./pictures/outcome.js").Outcome | null} outcome null until the runs were compared
   */
  update(runs, outcome) {
    if (outcome !== this.outcome) {
      this.outcome = outcome;
      if (this.number in this.progress.answers) this.reveal();
    }
    const isAnswered = this.number in this.progress.answers;
    const isOpen = !this.about.attempt || runs.some(({ isOver, isGone }) => isOver && !isGone);
    if (!isAnswered) this.choices.setDisabled(!isOpen);
    if (this.start && !this.start.dataset.busy) this.start.disabled = runs.some(({ isOver }) => !isOver);
  }

  /** Shows the given answer and, after the runs are compared, the measured one. */
  reveal() {
    const { outcome } = this;
    const answer = this.progress.answers[this.number];
    const isKnown = this.about.measured.length === 0 || outcome !== null;
    // Without a measurement the lesson's answer counts.
    const right = outcome?.verdict === "unmeasured" ? this.about.right : happened(outcome, this.about.right);
    this.choices.reveal(isKnown ? right : null, answer, outcome?.verdict === "otherwise");
    if (outcome) this.note.update(outcome);
    show(this.because, isKnown && right === this.about.right);
  }
}
