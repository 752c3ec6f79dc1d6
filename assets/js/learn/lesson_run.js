// One run of a lesson: its state in a row, and what was measured of it.

import { Traces } from "../charts/traces.js";
import { lineSample } from "../charts/line_sample.js";
import { placesOn } from "../runs/compare/figure.js";
import { asked } from "../runs/compare/scaling.js";
import { el, setText, show } from "../shared/dom.js";
import { count, LIVE_STATES } from "../shared/format.js";
import { address, callEndpoint, fetchJson, runAddress, runPage } from "../shared/net.js";
import { plainWords } from "./text.js";
import { StatePill } from "../shared/state_pill.js";

/** @typedef {{ axis: string, smoothing: number }} Look what the curves of a chart are drawn and smoothed over */

/**
 * How the charts of a lesson look at its runs, each once; one there is always.
 * @param {any} lesson
 * @returns {Look[]}
 */
export function looksOf({ pictures, prediction }) {
  const wanted = pictures.filter(({ curve }) => curve).map(({ axis, smoothing }) => ({ axis, smoothing }));
  if (prediction.curve) wanted.push({ axis: prediction.axis, smoothing: prediction.smoothing });
  const found = new Map(wanted.map((look) => [keyOf(look), look]));
  return found.size > 0 ? [...found.values()] : [{ axis: "step", smoothing: 0 }];
}

/** @param {Look} look */
const keyOf = ({ axis, smoothing }) => `${axis}:${smoothing}`;

export class LessonRun {
  /**
   * @param {string} name in the lesson
   * @param {number} index of its line in the charts
   * @param {string | null} runId null until it was started
   * @param {{ expect?: string, commands?: any[], looks?: Look[] }} about how it is meant to end, what is done to it
   *   meanwhile, and how its curves are looked at
   */
  constructor(
    name,
    index,
    runId,
    { expect = "finished", commands = [], looks = [{ axis: "step", smoothing: 0 }] } = {},
  ) {
    this.name = name;
    this.expect = expect;
    this.commands = commands;
    this.index = index;
    this.runId = runId;
    this.looks = looks;
    /** @type {Map<string, Traces>} */
    this.traces = new Map();
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
    this.error = el("p", {});
    this.details = el(
      "details",
      { class: "ddp-lesson-run-details", hidden: true },
      el("summary", {}, "In full, with the places in the code"),
      this.error,
    );
    this.sample = el("span", {}, lineSample(index));
    this.element = el(
      "li",
      { class: "ddp-lesson-run-row" },
      el("span", { class: "ddp-lesson-run-name" }, this.sample, name),
      this.pill.element,
      this.bar,
      this.words,
      this.link,
      this.details,
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
    this.traces = new Map();
    this.isGone = false;
    this.update();
  }

  /**
   * Its curves for a chart.
   * @param {Look} look
   */
  tracesOf(look) {
    return this.traces.get(keyOf(look)) ?? new Traces();
  }

  /**
   * One curve, smoothed where it can be.
   * @param {string} curve
   * @param {Look} look
   */
  traceOf(curve, look) {
    const traces = this.tracesOf(look);
    const smooth = traces.get(`${curve}_smooth`);
    const { x, y } = smooth.x.length > 0 ? smooth : traces.get(curve);
    return { x: placesOn(look.axis, x, this.head), y };
  }

  /** Reads what there is of it, unless all of it is known; rejects with a PlainError. */
  async read() {
    if (this.runId === null || this.isOver) return;
    try {
      const payloads = await Promise.all(
        this.looks.map((look) => fetchJson(runAddress(this.runId, "poll", { since: -1, ...asked(look) }))),
      );
      // The newest last, so that the head is not older than any curve.
      const payload = payloads.reduce((one, other) => (other.cursor >= one.cursor ? other : one));
      payloads.forEach((each, index) => {
        const traces = new Traces();
        traces.apply(each);
        traces.head = payload.head;
        this.traces.set(keyOf(this.looks[index]), traces);
      });
      this.head = payload.head;
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
    const error = head?.state === "failed" ? (head.error ?? "") : "";
    show(this.details, plainWords(error) !== error);
    setText(this.error, error);
  }

  said() {
    const { head } = this;
    if (this.runId === null) return "not started yet";
    if (this.isGone) return "was deleted";
    if (head === null) return "starting …";
    if (head.state === "queued") return this.placeWords || "in the queue";
    if (head.state === "failed") return this.failedWords(plainWords(head.error ?? ""));
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
