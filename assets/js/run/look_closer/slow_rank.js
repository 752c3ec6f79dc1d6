// Slows ranks down while they train, kills a rank, and shows the waiting time of all ranks live.

import { orShowError, showMessage, openDialog } from "../../shared/dialog.js";
import { el, setAttribute, setText, show } from "../../shared/dom.js";
import { LIVE_STATES, UNKNOWN, count, resumedBits, shortTime, worldSize } from "../../shared/format.js";
import { callEndpoint } from "../../shared/net.js";
import { resumeFrom } from "../header/header.js";
import { legendEntry, paragraph, textButton } from "../../shared/widgets.js";

const MAX_DELAY_MS = 1000;
const DELAY_STEP_MS = 10;

class RankRow {
  /**
   * @param {number} rank
   * @param {object} callbacks the callbacks
   * @param {(delayMs: number) => void} callbacks.onDelay
   * @param {(() => void) | null} callbacks.onKill null if the rank cannot be killed
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
      oninput: () => this.sayDelay(),
      onchange: () => onDelay(this.slider.valueAsNumber),
    });
    this.delay = el("output", {});
    this.wait = el("i", { class: "ddp-part ddp-part-wait" });
    this.work = el("i", { class: "ddp-part ddp-part-compute" });
    this.sleep = el("i", { class: "ddp-part ddp-part-sleep" });
    this.bar = el("div", { class: "ddp-rank-bar", role: "img" }, this.sleep, this.work, this.wait);
    this.text = el("p", { class: "ddp-rank-times" }, UNKNOWN);
    this.kill = onKill ? textButton(`Kill rank ${rank} …`, onKill, "small stop") : null;
    this.element = el(
      "li",
      {},
      el("strong", {}, `rank ${rank}`),
      el("label", { class: "ddp-slow-slider" }, "sleeps", this.slider, this.delay),
      el("div", { class: "ddp-slow-times" }, this.bar, this.text),
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
    const whole = `a step of ${shortTime(step)}`;
    const unknown = `${whole}; waiting is not measured with this strategy`;
    const text = waited === null ? unknown : `waits ${shortTime(waited)} of ${whole}`;
    setText(this.text, text);
    setAttribute(this.bar, "aria-label", `rank ${this.rank} ${text}`);
  }
}

const MAX_ROWS = 16;
// Measured from the last change: a slider moved by arrow keys must not send a command per step.
const SEND_AFTER_MS = 300;
// Ranks process commands only in these states.
const COMMAND_STATES = new Set(["running", "paused"]);

const PARTS = [
  ["compute", "computing and the rest of the step"],
  ["sleep", "sleeping, as requested"],
  ["wait", "waiting for other ranks"],
];

const CAPTION =
  "The rank sleeps before the forward pass of each step; waiting is measured as usual. " +
  "The results stay the same. The page marks the run, because its times are not representative.";
const ENDS_AT_ONCE =
  "Its process ends immediately (SIGKILL), as in a crash. The others cannot continue without it, so the run fails.";

export class SlowRank {
  name = "slow-rank";
  title = "Slow a rank down";
  about = "the slowest rank decides how fast all of them are";

  constructor(runId, summary) {
    this.runId = runId;
    this.mayChange = summary.may_change;
    this.killsRanks = summary.kills_ranks;
    this.numRanks = worldSize(summary.config);
    this.isDeterministic = summary.config.deterministic;
    /** The kind of device that the ranks reported; empty while unknown. */
    this.deviceKind = "";
    this.isOffered = false;
    this.state = "queued";
    /** The step of the latest checkpoint. */
    this.saved = null;
    /** The longest step time while no rank was delayed, in seconds. */
    this.usualStep = null;
    this.timers = new Map();
    this.rows = [];
    this.list = el("ol", { class: "ddp-slow-list" });
    this.cost = el("p", { class: "ddp-slow-cost", role: "status" });
    this.after = el("p", { class: "ddp-slow-after", role: "status" });
    const resume = () => this.saved !== null && resumeFrom(this.resume, runId, this.saved);
    this.resume = textButton("Resume", resume, "main");
    this.over = el("div", { class: "ddp-slow-over", hidden: true }, this.after, this.resume);
    const legend = PARTS.map(([part, text]) => legendEntry(`ddp-part-${part}`, text));
    const first = `The first ${MAX_ROWS} of ${count(this.numRanks)} ranks.`;
    const more = this.numRanks > MAX_ROWS ? paragraph("hint", first) : null;
    const above = [paragraph("caption", CAPTION), paragraph("legend", legend), this.cost];
    this.element = el("div", {}, above, this.list, more, this.over);
    this.layRows();
  }

  layRows() {
    this.rows = Array.from({ length: Math.min(MAX_ROWS, this.numRanks) }, (_, rank) => {
      const onDelay = (delayMs) => this.sendSoon(rank, delayMs);
      return new RankRow(rank, { onDelay, onKill: this.killsRanks ? () => this.askToKill(rank) : null });
    });
    this.list.replaceChildren(...this.rows.map(({ element }) => element));
  }

  open() {}

  update({ type, head, ranks, devices, marks, checkpoints }) {
    if (devices?.length > 0) this.deviceKind = devices[0].kind;
    if (head.num_ranks !== this.numRanks) {
      // The run was resumed with another number of ranks.
      this.numRanks = head.num_ranks;
      this.layRows();
    }
    if (checkpoints) this.saved = checkpoints[0]?.step ?? null;
    if (type === "snapshot") this.letAllGo();
    for (const mark of marks ?? []) this.note(mark);
    if (ranks) this.showTimes(ranks);
    this.showState(head.state);
  }

  showState(state) {
    this.state = state;
    const isLive = LIVE_STATES.has(state);
    this.isOffered = this.mayChange && this.numRanks > 1 && (isLive || this.isOffered);
    for (const row of this.rows) row.enable(COMMAND_STATES.has(state));
    show(this.over, !isLive);
    setText(this.after, this.afterText());
    show(this.resume, this.saved !== null && state !== "finished");
  }

  letAllGo() {
    for (const row of this.rows) row.setDelay(0);
  }

  /** Applies the delays that all ranks have confirmed; a restart has no delays. */
  note(mark) {
    if (mark.kind === "state" && mark.state === "starting") this.letAllGo();
    if (mark.kind === "command" && mark.name === "slow_rank" && mark.accepted && mark.arguments) {
      this.rows[mark.arguments.rank]?.setDelay(mark.arguments.delay_ms);
    }
  }

  showTimes(ranks) {
    const known = ranks.filter(({ step_time_s: seconds }) => seconds !== null && seconds !== undefined);
    const longest = Math.max(0, ...known.map(({ step_time_s: seconds }) => seconds));
    for (const rank of known) this.rows[rank.rank]?.showTimes(rank, longest);
    const sleeping = this.rows.filter((row) => row.delayMs > 0);
    if (longest > 0) setText(this.cost, this.costText(longest, known, sleeping));
    if (sleeping.length === 0 && longest > 0) this.usualStep = longest;
  }

  costText(longest, ranks, sleeping) {
    const before = this.usualStep === null ? "" : `, it was ${shortTime(this.usualStep)} without a sleep`;
    if (sleeping.length === 0) return `A step takes ${shortTime(longest)}. No rank sleeps.`;
    const waiting = ranks.filter(({ rank }) => !sleeping.some((row) => row.rank === rank));
    const waits = waiting
      .map(({ wait_time_s: seconds }) => seconds)
      .filter((seconds) => typeof seconds === "number");
    const most =
      waits.length > 0 ? `; the other ranks wait up to ${shortTime(Math.max(...waits))} of it` : "";
    const sleepers = sleeping.map(({ rank, delayMs }) => `rank ${rank} sleeps ${delayMs} ms`).join(", ");
    return `A step takes ${shortTime(longest)}${before}: ${sleepers}${most}.`;
  }

  afterText() {
    if (this.state === "finished") return "The run is done.";
    return this.saved === null
      ? "The run has ended and nothing was saved: start it again."
      : `The run has ended. ${this.resumeText()}.`;
  }

  resumeText() {
    const bits = resumedBits(this.isDeterministic, this.deviceKind);
    return `Resume continues from the checkpoint of step ${count(this.saved)}${bits}`;
  }

  sendSoon(rank, delayMs) {
    clearTimeout(this.timers.get(rank));
    this.timers.set(
      rank,
      setTimeout(() => orShowError(callEndpoint("slow_rank", this.runId, rank, delayMs)), SEND_AFTER_MS),
    );
  }

  askToKill(rank) {
    const recording =
      this.saved === null
        ? "Nothing has been saved yet: press Checkpoint first if you want to resume later."
        : `${this.resumeText()}; the steps after it are computed again.`;
    return openDialog({
      title: `Kill rank ${rank}?`,
      content: [el("p", {}, ENDS_AT_ONCE), el("p", {}, recording)],
      confirm: `Kill rank ${rank}`,
      isDangerous: true,
      onConfirm: async () => showMessage((await callEndpoint("kill_rank", this.runId, rank)).message),
    });
  }

  close() {
    for (const timer of this.timers.values()) clearTimeout(timer);
  }
}
