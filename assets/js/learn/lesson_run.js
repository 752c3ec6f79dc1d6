// One run of a lesson: its state in a row, and what was measured of it.

import { Traces } from "../charts/traces.js";
import { lineSample } from "../charts/line_sample.js";
import { el, setText, show } from "../shared/dom.js";
import { count, LIVE_STATES } from "../shared/format.js";
import { address, callEndpoint, fetchJson, runAddress, runPage } from "../shared/net.js";
import { StatePill } from "../shared/state_pill.js";

export class LessonRun {
  /**
   * @param {string} name in the lesson
   * @param {number} index of its line in the charts
   * @param {string | null} runId null until it was started
   * @param {{ expect?: string, commands?: any[] }} about how it is meant to end, and what is done to it meanwhile
   */
  constructor(name, index, runId, { expect = "finished", commands = [] } = {}) {
    this.name = name;
    this.expect = expect;
    this.commands = commands;
    this.index = index;
    this.runId = runId;
    this.traces = new Traces();
    /** @type {any} */
    this.head = null;
    /** @type {any[]} */
    this.ranks = [];
    /** @type {any[]} How each rank's step divided over the run. */
    this.history = [];
    /** @type {any} The newest message about it. */
    this.payload = null;
    this.isGone = false;
    this.smoothing = null;
    this.pill = new StatePill();
    this.bar = el("progress", { max: 1, value: 0, "aria-label": `How far ${name} is` });
    this.words = el("span", { class: "ddp-lesson-run-words" });
    this.link = el("a", { hidden: true }, "Open the run");
    this.sample = el("span", {}, lineSample(index));
    this.element = el(
      "li",
      { class: "ddp-lesson-run-row" },
      el("span", { class: "ddp-lesson-run-name" }, this.sample, name),
      this.pill.element,
      this.bar,
      this.words,
      this.link,
    );
    this.update();
  }

  /** Whether it has ended, in whichever way. */
  get isOver() {
    return this.isGone || (this.head !== null && !LIVE_STATES.has(this.head.state));
  }

  /** It ended otherwise than it was meant to, so that it shows nothing. */
  get isSpoilt() {
    if (this.isGone || !this.isOver) return false;
    return this.head.state !== "finished" && this.head.state !== this.expect;
  }

  /** It has been started. */
  started(runId) {
    this.runId = runId;
    this.head = null;
    this.ranks = [];
    this.history = [];
    this.traces = new Traces();
    this.isGone = false;
    this.update();
  }

  /** Reads what there is of it, unless all of it is known; rejects with a PlainError. */
  async read() {
    if (this.runId === null || this.isOver) return;
    try {
      const query = { since: -1, axis: "step", smoothing: 20, smooth_throughput: true };
      const payload = await fetchJson(runAddress(this.runId, "poll", query));
      this.traces.apply(payload);
      this.head = payload.head;
      this.traces.head = payload.head;
      this.ranks = payload.ranks ?? this.ranks;
      this.history = payload.rank_history ?? this.history;
      this.payload = payload;
      await this.command(payload);
      if (payload.head.state === "queued") {
        const { words } = await fetchJson(address(`live/queue/run?id=${encodeURIComponent(this.runId)}`));
        this.placeWords = words;
      }
    } catch (error) {
      if (error.status !== 404) throw error;
      this.isGone = true;
    }
    this.update();
  }

  /** Sends what the lesson does to the run: the next command that the run has not heard yet, when it is far enough. */
  async command({ head, marks }) {
    const next = this.commands[marks.filter(({ kind }) => kind === "command").length];
    if (!next || next === this.sent || head.state !== "running" || head.step < next.at_step) return;
    this.sent = next;
    await callEndpoint(next.endpoint, this.runId, ...next.values);
  }

  update() {
    const { head } = this;
    show(this.link, this.runId !== null && !this.isGone);
    if (this.runId !== null) this.link.href = runPage(this.runId);
    this.bar.value = head?.num_steps ? head.step / head.num_steps : 0;
    if (head) this.pill.update(head.state, false, head.detail);
    this.element.dataset.state = head?.state ?? "";
    setText(this.words, this.said());
  }

  said() {
    const { head } = this;
    if (this.runId === null) return "not started yet";
    if (this.isGone) return "was deleted";
    if (head === null) return "starting …";
    if (head.state === "queued") return this.placeWords || "in the queue";
    if (head.state === "failed") return this.failedWords(head.error ?? "");
    if (head.state === "finished" && this.expect === "failed") return "It did not fail, as it was meant to.";
    return head.num_steps ? `step ${count(head.step)} of ${count(head.num_steps)}` : "";
  }

  failedWords(error) {
    return this.expect === "failed" ? `It failed, as it was meant to. ${error}` : error;
  }

  /** The colours have changed. */
  redraw() {
    this.sample.replaceChildren(lineSample(this.index));
  }
}
