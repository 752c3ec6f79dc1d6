// The control that changes the learning rate of a live run.

import { enable } from "../head/enable.js";
import { commandWords } from "../history.js";
import { el } from "../../shared/dom.js";
import { count, number } from "../../shared/format.js";
import { callEndpoint } from "../../shared/net.js";
import { complain, inform } from "../../shared/toast.js";

// Ranks process commands only in these states.
const COMMAND_STATES = new Set(["running", "paused"]);
const NOT_YET = new Set(["queued", "starting"]);

export class LearningRateControl {
  /** `onSent()` is called after a command was sent. */
  constructor(runId, { config }, onSent) {
    this.runId = runId;
    this.onSent = onSent;
    /** @type {Set<string>} Ids of commands that were not answered yet. */
    this.asked = new Set();
    const { lr_schedule: schedule, warmup_steps: steps, warmup_ratio: share } = config;
    this.isFull = schedule !== "constant" || steps > 0 || share > 0;
    this.input = el("input", {
      type: "number",
      class: "ddp-input ddp-rate-input",
      min: 0,
      step: "any",
      required: true,
      autocomplete: "off",
      "aria-label": this.isFull ? "New full learning rate" : "New learning rate",
    });
    this.button = el("button", { type: "submit", class: "ddp-button ddp-button-small" }, "Set");
    this.element = el(
      "form",
      { class: "ddp-chart-controls ddp-rate-form", novalidate: true },
      this.input,
      this.button,
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  async send() {
    if (this.button.disabled) return;
    this.button.dataset.busy = "true";
    this.button.disabled = true;
    try {
      // The server checks the range, and its error states it.
      const answer = await callEndpoint("set_learning_rate", this.runId, this.input.valueAsNumber);
      this.asked.add(answer.command_id);
      inform(answer.message);
      this.input.value = "";
      this.onSent();
    } catch (error) {
      complain(error.message);
      this.input.focus({ preventScroll: true });
    } finally {
      delete this.button.dataset.busy;
      this.button.disabled = false;
    }
  }

  /** Shows the current rate and the result of each command that this control sent. */
  update({ head, marks = [] }) {
    const takesCommands = COMMAND_STATES.has(head.state);
    const reason = NOT_YET.has(head.state)
      ? "The run has not started training."
      : "The run is not training now.";
    const follows = this.isFull ? " Warm-up and schedule continue from it." : "";
    enable(this.button, takesCommands, `Takes effect in the next step.${follows}`, reason);
    enable(
      this.input,
      takesCommands,
      `Rate in step ${count(head.step)}: ${number(head.learning_rate, 3)}`,
      reason,
    );
    this.input.placeholder = `${number(head.learning_rate, 3)} now`;
    for (const mark of marks) {
      if (mark.kind !== "command" || !this.asked.delete(mark.id)) continue;
      if (mark.accepted) inform(commandWords(mark));
      else complain(commandWords(mark));
    }
  }
}
