// The end of a lesson: a link to the next one, and buttons to repeat it.

import { el, makeButton, show } from "../shared/dom.js";
import { address } from "../shared/net.js";

/** The URL of a lesson. */
export function lessonPage(name) {
  return address(`learn?lesson=${encodeURIComponent(name)}`);
}

export class Foot {
  /**
   * @param {string | null} next the name of the next lesson
   * @param {(withRuns: boolean) => void} onReset
   * @param {() => void} onReport
   */
  constructor(next, onReset, onReport) {
    const again = (words, withRuns) =>
      makeButton({ class: "ddp-button", onclick: () => onReset(withRuns) }, words);
    this.done = el("p", { class: "ddp-lesson-done", role: "status" }, "You have completed this lesson.");
    this.next = el("a", { class: "ddp-button", href: next && lessonPage(next) }, "Next lesson");
    this.hasNext = next !== null;
    this.report = makeButton({ class: "ddp-button", onclick: onReport }, "Lab report");
    this.resets = [again("Do it again", false), again("Do it again, delete its runs", true)];
    this.element = el(
      "footer",
      { class: "ddp-lesson-foot" },
      this.done,
      el("div", { class: "ddp-buttons" }, this.next, this.report, this.resets),
    );
  }

  /**
   * @param {{ isDone: boolean, hasBegun: boolean, isRunning: boolean }} lesson
   */
  update({ isDone, hasBegun, isRunning }) {
    show(this.done, isDone);
    show(this.next, isDone && this.hasNext);
    show(this.report, hasBegun);
    for (const button of this.resets) {
      show(button, hasBegun);
      button.disabled = isRunning;
    }
  }
}
