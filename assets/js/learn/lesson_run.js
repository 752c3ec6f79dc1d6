// A run of a lesson: its state as a row, and its measurements.

import { Traces } from "../charts/traces.js";
import { lineSample } from "../charts/chart.js";
import { placesOn, chartQuery } from "../runs/compare_figure.js";
import { el, setText, show } from "../shared/dom.js";
import { count, LIVE_STATES } from "../shared/format.js";
import { address, callEndpoint, fetchJson, runAddress, runPage } from "../shared/net.js";
import { plainWords } from "./text.js";
import { StatePill, collapsed } from "../shared/widgets.js";

/** @typedef {{ axis: string, smoothing: number }} ChartView the axis and the smoothing of a chart's curves */

/**
 * The distinct views of a lesson's charts; at least one.
 * @returns {ChartView[]}
 */
export function chartStyles({ pictures, prediction }) {
  const views = pictures.filter(({ curve }) => curve).map(({ axis, smoothing }) => ({ axis, smoothing }));
  if (prediction.curve) views.push({ axis: prediction.axis, smoothing: prediction.smoothing });
  const byKey = new Map(views.map((view) => [keyOf(view), view]));
  return byKey.size > 0 ? [...byKey.values()] : [{ axis: "step", smoothing: 0 }];
}

/** @param {ChartView} view */
const keyOf = ({ axis, smoothing }) => `${axis}:${smoothing}`;

export class LessonRun {
  /**
   * @param {string} name as in the lesson
   * @param {number} index the number of its line style in the charts
   * @param {string | null} runId null until it is started
   * @param {{ expect?: string, commands?: any[], views?: ChartView[] }} about the expected final state, the
   * commands that the lesson sends, and the views of its curves
   */
  constructor(
    name,
    index,
    runId,
    { expect = "finished", commands = [], views = [{ axis: "step", smoothing: 0 }] } = {},
  ) {
    this.name = name;
    this.expect = expect;
    this.commands = commands;
    this.index = index;
    this.runId = runId;
    this.views = views;
    /** @type {Map<string, Traces>} */
    this.traces = new Map();
    /** @type {any} */
    this.head = null;
    /** @type {any[]} */
    this.ranks = [];
    /** @type {any[]} The step time history of each rank. */
    this.history = [];
    /** @type {any} The latest payload. */
    this.payload = null;
    this.isGone = false;
    this.smoothing = null;
    this.pill = new StatePill();
    this.bar = el("progress", { max: 1, value: 0, "aria-label": `How far ${name} is` });
    this.text = el("span", { class: "ddp-lesson-run-words" });
    this.link = el("a", { hidden: true }, "Open the run");
    this.error = el("p", {});
    const title = "Full message with code locations";
    this.details = collapsed("ddp-lesson-run-details", title, this.error);
    this.sample = el("span", {}, lineSample(index));
    this.element = el(
      "li",
      { class: "ddp-lesson-run-row" },
      el("span", { class: "ddp-lesson-run-name" }, this.sample, name),
      this.pill,
      this.bar,
      this.text,
      this.link,
      this.details,
    );
    this.update();
  }

  /** True if the run has ended in any state, or was deleted. */
  get isOver() {
    return this.isGone || (this.head !== null && !LIVE_STATES.has(this.head.state));
  }

  /** True if the run ended in an unexpected state, so that its measurements are useless. */
  get isSpoilt() {
    if (this.isGone || !this.isOver) return false;
    return this.head.state !== "finished" && this.head.state !== this.expect;
  }

  /** Resets the measurements for a newly started run. */
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
   * The curves with a given view.
   * @param {ChartView} view
   */
  tracesOf(view) {
    return this.traces.get(keyOf(view)) ?? new Traces();
  }

  /**
   * A curve, smoothed if a smoothed version exists.
   * @param {string} curve
   * @param {ChartView} view
   */
  traceOf(curve, view) {
    const traces = this.tracesOf(view);
    const smooth = traces.get(`${curve}_smooth`);
    const { x, y } = smooth.x.length > 0 ? smooth : traces.get(curve);
    return { x: placesOn(view.axis, x, this.head), y };
  }

  /** Reads the run unless it has ended; rejects with a PlainError. */
  async read() {
    const { runId } = this;
    if (runId === null || this.isOver) return;
    try {
      const payloads = await Promise.all(
        this.views.map((view) => fetchJson(runAddress(runId, "poll", { since: -1, ...chartQuery(view) }))),
      );
      // Use the payload with the latest cursor, so that the head is not older than any curve.
      const payload = payloads.reduce((one, other) => (other.cursor >= one.cursor ? other : one));
      payloads.forEach((each, index) => {
        const traces = new Traces();
        traces.apply(each);
        traces.head = payload.head;
        this.traces.set(keyOf(this.views[index]), traces);
      });
      this.head = payload.head;
      this.ranks = payload.ranks ?? this.ranks;
      this.history = payload.rank_history ?? this.history;
      this.payload = payload;
      await this.command(payload);
      if (payload.head.state === "queued") {
        const { words: text } = await fetchJson(address("live/queue/run", { id: runId }));
        this.placeText = text;
      }
    } catch (error) {
      if (error.status !== 404) throw error;
      this.isGone = true;
    }
    this.update();
  }

  /**
   * Sends the next command of the lesson when the run has reached its step; the answered commands are
   * counted.
   */
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
    setText(this.text, this.stateText());
    const error = head?.state === "failed" ? (head.error ?? "") : "";
    show(this.details, plainWords(error) !== error);
    setText(this.error, error);
  }

  stateText() {
    const { head } = this;
    if (this.runId === null) return "not started yet";
    if (this.isGone) return "was deleted";
    if (head === null) return "starting …";
    if (head.state === "queued") return this.placeText || "in the queue";
    if (head.state === "failed") return this.failedText(plainWords(head.error ?? ""));
    if (head.state === "finished" && this.expect === "failed") return "It was expected to fail, but did not.";
    return head.num_steps ? `step ${count(head.step)} of ${count(head.num_steps)}` : "";
  }

  failedText(error) {
    return this.expect === "failed" ? `It failed, as expected. ${error}` : error;
  }

  /** Redraws the line sample after the colours changed. */
  redraw() {
    this.sample.replaceChildren(lineSample(this.index));
  }
}
