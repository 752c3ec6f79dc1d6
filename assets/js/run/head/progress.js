// The progress of a run, its error, and its current values.

import { term } from "../../shared/terms.js";
import { paceInWords } from "./pace.js";
import { el, icon, setAttribute, setText, show } from "../../shared/dom.js";
import {
  count,
  duration,
  isLossNaN,
  LIVE_STATES,
  loss,
  metric,
  metricLabel,
  UNKNOWN,
} from "../../shared/format.js";

// Activities besides training, by their names in the `ranks` event.
const DOING = {
  evaluating: "Evaluating on the whole validation set.",
  "making a sample": "Generating a sample from the model.",
  saving: "Saving a checkpoint.",
};
const STANDS_STILL = "its ranks are stopped and continue where they are when the job is resumed.";
const RESERVED = "\u00a0";

export class Progress {
  constructor(summary) {
    this.summary = summary;
    this.fill = el("div", { class: "ddp-bar-fill" });
    this.bar = el(
      "div",
      {
        class: "ddp-bar",
        role: "progressbar",
        "aria-label": "Progress of the run",
        "aria-valuemin": 0,
        "aria-valuemax": 100,
      },
      this.fill,
    );
    this.where = el("span", { class: "ddp-where" }, RESERVED);
    this.elapsed = el("span", { class: "ddp-elapsed" });
    this.note = el("p", { class: "ddp-reason" }, RESERVED);
    this.problem = new Problem();
    this.element = el(
      "div",
      { class: "ddp-progress" },
      this.bar,
      el("div", { class: "ddp-progress-line" }, this.where, this.elapsed),
      this.note,
      this.problem.element,
    );
  }

  update(head) {
    const share = head.num_steps ? Math.min(1, head.step / head.num_steps) : 0;
    const isWaiting = head.state === "queued";
    const isStarting = head.state === "starting" && head.step === 0;
    this.fill.style.width = `${(share * 100).toFixed(2)}%`;
    this.bar.dataset.state = head.state;
    setAttribute(this.bar, "aria-valuenow", Math.round(share * 100));
    const position = isStarting ? "waiting for the first step" : this.position(head);
    setText(this.where, isWaiting ? "waiting in the queue" : position);
    const passed = duration(this.elapsedSeconds(head));
    const isOver = !LIVE_STATES.has(head.state);
    const running = `${isOver ? `took ${passed}` : `${passed} elapsed`}${pausedWords(head.paused_s)}`;
    setText(this.elapsed, isWaiting ? `for ${passed}` : running);
    setText(this.note, this.words(head) || RESERVED);
    this.problem.update(head);
  }

  position(head) {
    const parts = [`step ${count(head.step)}${head.num_steps ? ` of ${count(head.num_steps)}` : ""}`];
    if (head.num_epochs) {
      parts.unshift(`epoch ${count(Math.min(head.epoch + 1, head.num_epochs))} of ${count(head.num_epochs)}`);
    }
    const isTraining = head.state === "running" && !head.detail;
    if (head.eta_s !== null && isTraining) parts.push(`${duration(head.eta_s)} left`);
    return parts.join(" · ");
  }

  elapsedSeconds(head) {
    if (head.elapsed_s > 0 || !LIVE_STATES.has(head.state)) return head.elapsed_s;
    return Math.max(0, Date.now() / 1000 - this.summary.created_unix_s);
  }

  words(head) {
    if (head.silence) return head.silence;
    if (head.detail) return `${head.detail[0].toUpperCase()}${head.detail.slice(1)}: ${STANDS_STILL}`;
    if (head.state === "queued") return "It starts automatically. You can close this page.";
    if (head.state === "starting") {
      return `Starting: ${head.reason || "importing torch on every rank takes a few seconds."}`;
    }
    if (head.state === "running") return DOING[head.doing] ?? "";
    return head.state === "failed" ? "" : (head.reason ?? "");
  }
}

/** The paused part of a run's time, if it is at least half a second. */
const pausedWords = (seconds) => (seconds >= 0.5 ? `, of which ${duration(seconds)} paused` : "");

class Problem {
  constructor() {
    this.message = el("p", { class: "ddp-problem-message" });
    this.hint = el("p", {});
    this.traceback = el("pre", { tabindex: 0 });
    this.details = el("details", {}, el("summary", {}, "Traceback"), this.traceback);
    this.element = el(
      "div",
      { class: "ddp-problem-box", role: "alert", hidden: true },
      icon("cross"),
      el("div", {}, this.message, this.hint, this.details),
    );
  }

  update(head) {
    const isShown = (head.state === "failed" || head.state === "lost") && Boolean(head.error);
    show(this.element, isShown);
    if (!isShown) return;
    const names = typeof head.rank === "number" && !/\brank \d/i.test(head.error);
    setText(this.message, `${names ? `Rank ${head.rank}: ` : ""}${head.error}`);
    setText(this.hint, head.hint ?? "");
    show(this.hint, Boolean(head.hint));
    setText(this.traceback, head.traceback ?? "");
    show(this.details, Boolean(head.traceback));
  }
}

export class Tiles {
  constructor(summary) {
    this.isScript = Boolean(summary.config.script);
    this.tiles = {
      loss: tile(term("loss", "training loss")),
      metric: tile("validation"),
      pace: tile(term("throughput", `${summary.sample_unit.split(" ")[0]} per second`)),
      step: tile(term("step", "time of one step")),
    };
    this.element = el(
      "dl",
      { class: "ddp-tiles" },
      Object.values(this.tiles).map((item) => item.element),
    );
  }

  update(head) {
    const { tiles } = this;
    tiles.loss.set(
      isLossNaN(head) ? "NaN" : loss(head.loss),
      head.step > 0 ? `at step ${count(head.step)}` : "",
    );
    const name = head.best?.name ?? Object.keys(head.metrics ?? {})[0];
    if (name === undefined) {
      tiles.metric.set(UNKNOWN, this.isScript ? "shown by watch.log(…)" : "after the first evaluation");
    } else {
      const best = head.best ? `best ${metric(name, head.best.value)} at step ${count(head.best.step)}` : "";
      tiles.metric.set(metric(name, head.metrics?.[name]), best, `validation ${metricLabel(name)}`);
    }
    const pace = paceInWords(head);
    tiles.pace.set(...pace.samples);
    tiles.step.set(...pace.step);
  }
}

function tile(title) {
  const label = el("dt", {}, title);
  const value = el("dd", { class: "ddp-tile-value" }, UNKNOWN);
  const note = el("dd", { class: "ddp-tile-note" }, RESERVED);
  return {
    element: el("div", { class: "ddp-card ddp-tile" }, label, value, note),
    set(text, noteText, labelText) {
      setText(value, text);
      setText(note, noteText || RESERVED);
      if (labelText) setText(label, labelText);
    },
  };
}
