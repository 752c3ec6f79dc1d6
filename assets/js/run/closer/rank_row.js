// A row of "Slow a rank down": a rank's slider, its waiting time, and its kill button.

import { el, setAttribute, setText } from "../../shared/dom.js";
import { shortTime, UNKNOWN } from "../../shared/format.js";

const MAX_DELAY_MS = 1000;
const DELAY_STEP_MS = 10;

export class RankRow {
  /**
   * @param {number} rank
   * @param {object} told the callbacks
   * @param {(delayMs: number) => void} told.onDelay
   * @param {(() => void) | null} told.onKill null if the rank cannot be killed
   */
  constructor(rank, { onDelay, onKill }) {
    this.rank = rank;
    /** The delay that all ranks have confirmed. */
    this.delayMs = 0;
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: MAX_DELAY_MS,
      step: DELAY_STEP_MS,
      value: 0,
      "aria-label": `Milliseconds that rank ${rank} sleeps in each step`,
    });
    this.slider.addEventListener("input", () => this.sayDelay());
    this.slider.addEventListener("change", () => onDelay(this.slider.valueAsNumber));
    this.delay = el("output", {});
    this.wait = el("i", { class: "ddp-part ddp-part-wait" });
    this.work = el("i", { class: "ddp-part ddp-part-compute" });
    this.sleep = el("i", { class: "ddp-part ddp-part-sleep" });
    this.bar = el("div", { class: "ddp-rank-bar", role: "img" }, this.sleep, this.work, this.wait);
    this.words = el("p", { class: "ddp-rank-times" }, UNKNOWN);
    this.kill = onKill
      ? el(
          "button",
          { type: "button", class: "ddp-button ddp-button-small ddp-button-stop", onclick: onKill },
          `Kill rank ${rank} …`,
        )
      : null;
    this.element = el(
      "li",
      {},
      el("strong", {}, `rank ${rank}`),
      el("label", { class: "ddp-slow-slider" }, "sleeps", this.slider, this.delay),
      el("div", { class: "ddp-slow-times" }, this.bar, this.words),
      this.kill,
    );
    this.sayDelay();
  }

  setDelay(delayMs) {
    this.delayMs = delayMs;
    // Do not move the slider while the user drags it.
    if (document.activeElement !== this.slider || delayMs === 0) this.slider.value = String(delayMs);
    this.sayDelay();
  }

  sayDelay() {
    setText(this.delay, `${this.slider.value} ms`);
    setAttribute(this.slider, "aria-valuetext", `${this.slider.value} milliseconds`);
  }

  enable(isEnabled) {
    this.slider.disabled = !isEnabled;
    if (this.kill) this.kill.disabled = !isEnabled;
  }

  /** `longest` is the longest step time of all ranks, in seconds. */
  showTimes({ step_time_s: step, wait_time_s: wait }, longest) {
    const share = (seconds) => `${(100 * Math.max(0, seconds)) / longest}%`;
    const waited = typeof wait === "number" ? Math.min(wait, step) : null;
    const slept = Math.min(this.delayMs / 1000, step - (waited ?? 0));
    this.sleep.style.width = share(slept);
    this.work.style.width = share(step - slept - (waited ?? 0));
    this.wait.style.width = share(waited ?? 0);
    const words =
      waited === null
        ? `a step of ${shortTime(step)}; waiting is not measured with this strategy`
        : `waits ${shortTime(waited)} of a step of ${shortTime(step)}`;
    setText(this.words, words);
    setAttribute(this.bar, "aria-label", `rank ${this.rank} ${words}`);
  }
}
