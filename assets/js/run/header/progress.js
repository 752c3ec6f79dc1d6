// The progress of a run, its error and current values, its place in the queue, its forwarding, and the
// browser's tab.

import { actionButton } from "../../shared/dialog.js";
import { el, icon, setAttribute, setText, show, visible, showText } from "../../shared/dom.js";
import {
  LIVE_STATES,
  UNKNOWN,
  count,
  duration,
  isLossNaN,
  loss,
  metric,
  metricLabel,
  number,
  shareDone,
  shortTime,
  state as stateText,
  clock,
  capital,
} from "../../shared/format.js";
import { address, fetchJson, runAddress, askEvery } from "../../shared/net.js";
import { term } from "../../shared/terms.js";
import { buttonLink, buttonRow, collapsed } from "../../shared/widgets.js";
import { wantsNotifications } from "./projector.js";

// Step time and throughput, always computed from the same steps.

/**
 * @typedef {object} Pace
 * @property {number} step_time_s
 * @property {number} samples_per_s
 * @property {number} num_steps
 * @property {number} mean_step_time_s
 * @property {boolean} is_whole_run
 */

/**
 * The value and the note of both tiles.
 * @param {{ state: string, pace: Pace | null }} head
 * @returns {{ samples: [string, string], step: [string, string] }}
 */
export function paceText({ state, pace }) {
  if (!pace) {
    const note = LIVE_STATES.has(state) ? "after the first steps" : "too short to measure";
    return { samples: [UNKNOWN, note], step: [UNKNOWN, note] };
  }
  const samples = number(pace.samples_per_s, 3);
  const time = shortTime(pace.step_time_s);
  // The number of steps with a full global batch; the cards of the ranks sample only about one step per
  // second.
  const steps = `${count(pace.num_steps)} steps`;
  if (!pace.is_whole_run) {
    return { samples: [samples, "all ranks together"], step: [time, `mean of the latest ${steps}`] };
  }
  const mean = number((pace.samples_per_s * pace.step_time_s) / pace.mean_step_time_s, 3);
  return {
    samples: [samples, `all ranks, at the median step; mean ${mean}`],
    step: [time, `median of ${steps}; mean ${shortTime(pace.mean_step_time_s)}`],
  };
}

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
    const range = { "aria-label": "Progress of the run", "aria-valuemin": 0, "aria-valuemax": 100 };
    this.bar = el("div", { class: "ddp-bar", role: "progressbar", ...range }, this.fill);
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
      this.problem,
    );
  }

  update(head) {
    const share = shareDone(head) ?? 0;
    const isWaiting = head.state === "queued";
    const isStarting = head.state === "starting" && head.step === 0;
    this.fill.style.width = `${(share * 100).toFixed(2)}%`;
    this.bar.dataset.state = head.state;
    setAttribute(this.bar, "aria-valuenow", Math.round(share * 100));
    const position = isStarting ? "waiting for the first step" : this.position(head);
    setText(this.where, isWaiting ? "waiting in the queue" : position);
    const passed = duration(this.elapsedSeconds(head));
    const isOver = !LIVE_STATES.has(head.state);
    const running = `${isOver ? `took ${passed}` : `${passed} elapsed`}${pausedText(head.paused_s)}`;
    setText(this.elapsed, isWaiting ? `for ${passed}` : running);
    setText(this.note, this.describe(head) || RESERVED);
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

  describe(head) {
    if (head.silence) return head.silence;
    if (head.detail) return `${capital(head.detail)}: ${STANDS_STILL}`;
    if (head.state === "queued") return "It starts automatically. You can close this page.";
    if (head.state === "starting") {
      return `Starting: ${head.reason || "importing torch on every rank takes a few seconds."}`;
    }
    if (head.state === "running") return DOING[head.doing] ?? "";
    return head.state === "failed" ? "" : (head.reason ?? "");
  }
}

/** The paused part of a run's time, if it is at least half a second. */
const pausedText = (seconds) => (seconds >= 0.5 ? `, of which ${duration(seconds)} paused` : "");

class Problem {
  constructor() {
    this.message = el("p", { class: "ddp-problem-message" });
    this.hint = el("p", {});
    this.traceback = el("pre", { tabindex: 0 });
    this.details = collapsed(null, "Traceback", this.traceback);
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
    showText(this.hint, head.hint);
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
    this.element = el("dl", { class: "ddp-tiles" }, Object.values(this.tiles));
  }

  update(head) {
    const { tiles } = this;
    tiles.loss.set(
      isLossNaN(head) ? "NaN" : loss(head.loss),
      head.step > 0 ? `at step ${count(head.step)}` : "",
    );
    const name = head.best?.name ?? Object.keys(head.metrics ?? {})[0];
    if (name === undefined) {
      const note = LIVE_STATES.has(head.state) ? "after the first evaluation" : "not evaluated";
      tiles.metric.set(UNKNOWN, this.isScript ? "shown by watch.log(…)" : note);
    } else {
      const best = head.best ? `best ${metric(name, head.best.value)} at step ${count(head.best.step)}` : "";
      tiles.metric.set(metric(name, head.metrics?.[name]), best, `validation ${metricLabel(name)}`);
    }
    const pace = paceText(head);
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

// On the page of a queued run: its place in the queue, its expected start, and the Remove button.

const REFRESH_EVERY_MS = 2000;

export class QueuedPanel {
  /** `afterAction()` is called after a click was processed. */
  constructor(runId, afterAction) {
    this.runId = runId;
    this.end = null;
    this.text = el("strong", {}, "Queued");
    this.why = el("p", {});
    this.share = actionButton("Use occupied GPUs too", "", () => ["use_occupied_gpus", runId], afterAction);
    this.out = actionButton("Remove from the queue", "", () => ["stop_run", runId, true], afterAction);
    this.element = el(
      "section",
      { class: "ddp-queued", "aria-label": "Waiting in the queue", hidden: true },
      icon("wait"),
      el("div", { role: "status" }, this.text, this.why),
      buttonRow(this.share, this.out, buttonLink("The whole queue", { href: address("queue") })),
    );
    show(this.share, false);
  }

  /** Polls only while the run is queued. */
  update({ head }) {
    if (head.state === "queued") this.end ??= askEvery(REFRESH_EVERY_MS, () => this.ask());
    else {
      this.close();
      show(this.element, false);
    }
  }

  async ask() {
    const said = await fetchJson(address("live/queue/run", { id: this.runId }));
    if (this.end === null) return;
    show(this.element, said.words !== "");
    if (said.words === "") return;
    setText(this.text, capital(said.words));
    setText(this.why, said.why);
    show(this.share, said.can_share_gpus);
  }

  close() {
    this.end?.();
    this.end = null;
  }
}

// The browser tab: progress in its title, and an optional notification when the run has ended.

const ENDED = { finished: "has finished", failed: "has failed", stopped: "was stopped", lost: "was lost" };

export class Tab {
  constructor(name) {
    this.name = visible(name);
    this.before = null;
    this.titleBefore = document.title;
  }

  update(head) {
    const isLive = LIVE_STATES.has(head.state);
    const lead =
      isLive && head.num_steps > 0
        ? `${Math.floor((100 * head.step) / head.num_steps)}%`
        : stateText(head.state)[1];
    const title = `${lead} · ${this.name}`;
    if (document.title !== title) document.title = title;
    const hasEnded = this.before !== null && LIVE_STATES.has(this.before) && !isLive;
    this.before = head.state;
    if (hasEnded && wantsNotifications()) this.tell(head);
  }

  tell(head) {
    const { name, value } = head.best ?? {};
    const best = head.best ? `Best ${metricLabel(name)} ${metric(name, value)}.` : "";
    const title = `${this.name} ${ENDED[head.state] ?? "has ended"}`;
    const notification = new Notification(title, { body: head.error || best, tag: this.name });
    notification.addEventListener("click", () => window.focus());
  }

  close() {
    document.title = this.titleBefore;
  }
}

// One line about forwarding a run to an experiment tracker: the last step sent, or the error.

const ASK_EVERY_MS = 3000;
const LATE_AFTER_MS = 30_000;
const WAITING_STATES = new Set(["queued", "starting"]);
const LABELS = {
  tensorboard: "TensorBoard",
  trackio: "Trackio",
  mlflow: "MLflow",
  wandb: "Weights & Biases",
};

/**
 * The line as text.
 * @param {string} label
 * @param {{ phase?: string, step: number, error: string | null, retry_unix_s: number | null, where: string,
 *   is_alive: boolean, command: string }} state
 */
export function forwardingText(label, state) {
  const { phase, step, error, where, command } = state;
  const sent = `${label}: forwarded up to step ${count(step ?? 0)}`;
  const place = where ? ` (${where})` : "";
  if (phase === "done") return `${label}: everything is forwarded${place}.`;
  if (phase === "given_up") {
    return `${sent}, then it gave up: ${error}. Send the rest with: ${command}`;
  }
  if (!state.is_alive) {
    return phase === undefined
      ? `${label}: forwarding has not begun. See logs/forward.log, or start it with: ${command}`
      : `${sent}; its process has ended early. Send the rest with: ${command}`;
  }
  if (error) {
    const retry = state.retry_unix_s === null ? "" : ` Trying again at ${clock(state.retry_unix_s)}.`;
    return `${sent}. ${error.replace(/\.$/, "")}.${retry} The run is not affected.`;
  }
  return `${sent}${place}.`;
}

export class ForwardingLine {
  /** @param {string} runId @param {{ config: { forward_to?: string }, imported: any }} summary */
  constructor(runId, { config, imported }) {
    this.element = el("p", { class: "ddp-hint", id: "forwarding", role: "status", hidden: true });
    const label = LABELS[config.forward_to ?? ""];
    this.end = () => {};
    if (!label || imported) return;
    this.end = askEvery(
      ASK_EVERY_MS,
      async () => {
        const state = await fetchJson(runAddress(runId, "forwarding"));
        // A queued run has no follower yet; just after the start its follower is still importing libraries.
        const hasBegun = state.phase !== undefined || state.is_alive;
        setText(this.element, forwardingText(label, state));
        show(this.element, hasBegun || this.isLate());
        if (!this.isLive && (state.phase === "done" || state.phase === "given_up")) this.end();
      },
      (error) => {
        if (error !== null) showText(this.element, `${label}: ${error.message}`);
      },
    );
  }

  startedAtMs = 0;
  isLive = true;

  update({ head: { state } }) {
    this.isLive = LIVE_STATES.has(state);
    if (WAITING_STATES.has(state)) this.startedAtMs = 0;
    else this.startedAtMs ||= performance.now();
  }

  isLate() {
    return this.startedAtMs > 0 && (!this.isLive || performance.now() - this.startedAtMs > LATE_AFTER_MS);
  }

  close() {
    this.end();
  }
}
