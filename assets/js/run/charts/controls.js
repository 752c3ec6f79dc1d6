// Controls of a run's charts: the axes of the loss, the learning rate, and the menu of a checkpoint's mark.

import { scaleSelect, select } from "../../charts/chart.js";
import { SMOOTHINGS, smoothingOf } from "../../charts/style.js";
import { setPreference, preference } from "../../shared/browser.js";
import { act, closeButton, showError, showMessage } from "../../shared/dialog.js";
import { el, enable, setText, show } from "../../shared/dom.js";
import { bytes, clock, count, metricLabel, number } from "../../shared/format.js";
import { runAddress } from "../../shared/net.js";
import { buttonLink, textButton } from "../../shared/widgets.js";
import { resumeFrom } from "../header/header.js";
import { commandText, saveReason } from "../history.js";
import { CHECKPOINT, metricNames } from "./figures.js";

// Controls of the loss chart: steps or time, linear or logarithmic, smoothing. Stored in this browser.

const DEFAULTS = { axis: "step", isLogarithmic: false, smoothing: 10 };

export class LossControls {
  /** `onChange(view, isNewData)`: `isNewData` if other points must be fetched (another axis or smoothing). */
  constructor(onChange) {
    this.view = { ...DEFAULTS, ...preference("look", {}) };
    const change = (values, isNewData) => {
      this.view = { ...this.view, ...values };
      setPreference("look", this.view);
      onChange(this.view, isNewData);
    };
    /** @returns {[string, string][]} */
    const smoothings = () => SMOOTHINGS.map((smoothing) => [String(smoothing), smoothing ? `smoothed over ${smoothingOf({ ...this.view, smoothing }).text}` : "not smoothed"]);
    const smoothing = select("Smoothing", smoothings(), String(this.view.smoothing), (steps) => change({ smoothing: Number(steps) }, true));
    this.element = el(
      "div",
      { class: "ddp-chart-controls" },
      select("Drawn over", [["step", "over steps"], ["time", "over time"]], this.view.axis, (axis) => {
        change({ axis }, true);
        smoothings().forEach(([, text], index) => (smoothing.options[index].textContent = text));
      }),
      scaleSelect(this.view.isLogarithmic, (isLogarithmic) => change({ isLogarithmic }, false)),
      smoothing,
    );
  } // prettier-ignore
}

export class MetricControls {
  constructor(onChange) {
    this.chosen = null;
    this.names = [];
    this.element = el("div", { class: "ddp-chart-controls", hidden: true });
    this.onChange = onChange;
  }

  /** Updates the list of metrics; hidden if there is only one. */
  offer(traces) {
    const names = metricNames(traces);
    if (names.join() === this.names.join()) return;
    this.names = names;
    this.element.hidden = names.length < 2;
    const options = names.map((name) => [name, metricLabel(name)]);
    this.element.replaceChildren(
      select("Metric", options, names.includes(this.chosen) ? this.chosen : names[0], (name) => {
        this.chosen = name;
        this.onChange();
      }),
    );
  }
}

// The control that changes the learning rate of a live run.

// Ranks process commands only in these states.
const COMMAND_STATES = new Set(["running", "paused"]);
const NOT_YET = new Set(["queued", "starting"]);

export class LearningRateControl {
  /** `onSent()` is called after a command was sent. */
  constructor(runId, { config }, onSent) {
    this.runId = runId;
    this.onSent = onSent;
    /** @type {Set<string>} Ids of commands that were not answered yet. */
    this.requested = new Set();
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
    this.button = textButton("Set", null, "small", { type: "submit" });
    const attributes = { novalidate: true, onsubmit: (event) => this.send(event) };
    this.element = el(
      "form",
      { class: "ddp-chart-controls ddp-rate-form", ...attributes },
      this.input,
      this.button,
    );
  }

  async send(event) {
    event.preventDefault();
    if (this.button.disabled) return;
    // The server checks the range, and its error states it.
    const answer = await act(this.button, "set_learning_rate", this.runId, this.input.valueAsNumber);
    if (answer === null) this.input.focus({ preventScroll: true });
    else {
      this.requested.add(answer.command_id);
      this.input.value = "";
      this.onSent();
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
      if (mark.kind !== "command" || !this.requested.delete(mark.id)) continue;
      if (mark.accepted) showMessage(commandText(mark));
      else showError(commandText(mark));
    }
  }
}

// The menu of a checkpoint's mark: resume from it, or download it.

export class CheckpointMenu {
  /** `onResume()` is called after the run was resumed; null if the user may not change the run. */
  constructor(runId, onResume) {
    this.runId = runId;
    this.mayResume = onResume !== null;
    this.checkpoints = [];
    this.text = el("p", {});
    const resume = async () => {
      if (await resumeFrom(this.resume, runId, this.step)) this.hide();
      onResume();
    };
    this.resume = textButton("Resume from here", resume, "small");
    this.download = buttonLink("Download", { download: "" }, "small");
    const hide = () => this.hide();
    const close = closeButton(hide);
    this.element = el(
      "div",
      { class: "ddp-checkpoint-menu", role: "dialog", "aria-label": "Checkpoint", hidden: true },
      this.text,
      this.mayResume ? this.resume : null,
      this.download,
      close,
    );
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  /** Listens to clicks on the plot, once Plotly has created it. */
  attach(plot) {
    if (this.plot === plot || !plot.on) return;
    this.plot = plot;
    plot.on("plotly_click", ({ points, event }) => {
      const point = points.find((candidate) => candidate.data.name.startsWith(CHECKPOINT));
      if (point) this.open(point.customdata, event);
    });
  }

  take(checkpoints) {
    this.checkpoints = checkpoints;
    if (!this.element.hidden && !checkpoints.some((item) => item.step === this.step)) this.hide();
  }

  open(step, { clientX }) {
    const item = this.checkpoints.find((candidate) => candidate.step === step);
    if (!item) return;
    this.step = step;
    const why = saveReason(item.reason);
    const when = `saved ${why ? `${why}, ` : ""}${clock(item.saved_unix_s)}`;
    setText(this.text, `Step ${count(step)}, ${bytes(item.size_bytes)}, ${when}`);
    this.download.href = runAddress(this.runId, `checkpoints/${step}/download`);
    show(this.element, true);
    const box = this.element.parentElement.getBoundingClientRect();
    const left = Math.max(8, Math.min(clientX - box.left - 20, box.width - this.element.offsetWidth - 8));
    this.element.style.left = `${left}px`;
    (this.mayResume ? this.resume : this.download).focus({ preventScroll: true });
  }

  hide() {
    show(this.element, false);
  }
}
