// The step time of a rank over the run: a strip of stacked areas, with median and 95th percentile.

import { el, setAttribute, setText, svg } from "../shared/dom.js";
import { count, shortTime } from "../shared/format.js";

const WIDTH = 400;
const HEIGHT = 36;
const MIN_SAMPLES = 3;
/** The parts from bottom to top, in the order of the bar from left to right. */
const STACKED = ["data", "forward", "backward", "mixed", "reduce", "optimizer", "compute", "wait", "rest"];
/** The order of the values in a slice, as the server sends them. */
const FIELDS = [
  "step_time_s",
  "data_time_s",
  "forward_time_s",
  "backward_time_s",
  "optimizer_time_s",
  "wait_time_s",
  "all_reduce_time_s",
  "hidden_time_s",
];

/**
 * Splits a step into parts, in seconds. Parts that were not measured separately are merged with their
 * neighbours.
 * @param {Record<string, any>} rank
 * @returns {Record<string, number>}
 */
export function divide(rank) {
  const { step_time_s: step, data_time_s: data, wait_time_s: wait } = rank;
  const { forward_time_s: forward, backward_time_s: backward, optimizer_time_s: optimizer } = rank;
  const { all_reduce_time_s: allReduce, hidden_time_s: hidden } = rank;
  /** @type {Record<string, number>} */
  const parts = { data: data ?? 0 };
  if (typeof forward !== "number" || typeof backward !== "number") {
    parts.compute = Math.max(0, step - parts.data - (wait ?? 0));
  } else {
    parts.forward = forward;
    if (typeof allReduce === "number") {
      const seen = allReduce - (hidden ?? 0);
      parts.backward = Math.max(0, backward - seen);
      parts.reduce = Math.max(0, seen - (wait ?? 0));
    } else {
      parts.mixed = Math.max(0, backward - (wait ?? 0));
    }
    parts.optimizer = optimizer ?? 0;
  }
  if (typeof wait === "number") parts.wait = wait;
  parts.rest = Math.max(0, step - Object.values(parts).reduce((sum, seconds) => sum + seconds, 0));
  if (parts.rest < 0.02 * step) delete parts.rest;
  return parts;
}

/**
 * The SVG paths of stacked areas, by part; each slice is a column.
 * @param {Record<string, number>[]} slices
 * @returns {Record<string, string>}
 */
export function outlines(slices) {
  const total = (slice) => Object.values(slice).reduce((sum, seconds) => sum + seconds, 0);
  const highest = Math.max(...slices.map(total), 1e-12);
  const place = (index) => (WIDTH * index) / slices.length;
  const height = (seconds) => HEIGHT - (HEIGHT * seconds) / highest;
  let below = slices.map(() => 0);
  /** @type {Record<string, string>} */
  const found = {};
  for (const name of STACKED) {
    if (!slices.some((slice) => slice[name] > 0)) continue;
    const above = slices.map((slice, index) => below[index] + (slice[name] ?? 0));
    const edge = (levels) =>
      levels.flatMap((seconds, index) => [
        `${place(index).toFixed(1)},${height(seconds).toFixed(2)}`,
        `${place(index + 1).toFixed(1)},${height(seconds).toFixed(2)}`,
      ]);
    found[name] = `M${[...edge(above), ...edge(below).toReversed()].join("L")}Z`;
    below = above;
  }
  return found;
}

/**
 * The median and the 95th percentile of a rank's sampled steps and their range; too few samples have neither.
 * @param {{ num_samples: number, first_step: number, last_step: number, median_s: number | null, p95_s: number | null }} history
 */
export function stepWords(history) {
  const { num_samples: number, first_step: first, last_step: last, p95_s: p95S } = history;
  const steps = `sampled step${number === 1 ? "" : "s"}`;
  if (number < MIN_SAMPLES) return `${count(number)} ${steps}: too few for a median`;
  const which = `${count(number)} ${steps} (${count(first)} to ${count(last)})`;
  const slow = p95S === null ? "too few for a 95th percentile" : `95th percentile ${shortTime(p95S)}`;
  return `median ${shortTime(history.median_s)} of ${which}; ${slow}`;
}

export class HistoryStrip {
  constructor() {
    this.paths = new Map();
    this.picture = svg("svg", {
      class: "ddp-rank-history",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
    });
    this.words = el("p", { class: "ddp-rank-times" }, "\u00a0");
    this.element = el("div", {}, this.picture, this.words);
  }

  update(history) {
    const named = history.slices.map((slice) =>
      Object.fromEntries(FIELDS.map((field, at) => [field, slice[at]])),
    );
    const shapes = outlines(named.map(divide));
    for (const name of STACKED) this.path(name).setAttribute("d", shapes[name] ?? "");
    const words = stepWords(history);
    setText(this.words, words);
    setAttribute(this.picture, "aria-label", words);
  }

  path(name) {
    if (!this.paths.has(name)) {
      const path = svg("path", { class: `ddp-area-${name}` });
      this.paths.set(name, path);
      this.picture.append(path);
    }
    return this.paths.get(name);
  }
}
