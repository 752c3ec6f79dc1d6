// How the step of each rank splits into data, forward, backward with all-reduce, optimizer and waiting for
// other ranks, and its time over the run.

import { el, section, setAttribute, setText, show, svg, showText } from "../shared/dom.js";
import { LIVE_STATES, bytes, count, shortTime } from "../shared/format.js";
import { term } from "../shared/terms.js";
import { ReplicaBadge } from "./look_closer/fingerprints.js";
import { NodeGroups } from "./devices.js";
import { legendEntry, paragraph } from "../shared/widgets.js";

const WIDTH = 400;
const HEIGHT = 36;
const MIN_SAMPLES = 3;
/** The parts from bottom to top, in the order of the bar from left to right. */
const WORDS = {
  data: "loading data",
  forward: "forward",
  backward: "backward",
  mixed: "backward with all-reduce",
  reduce: "all-reduce, not hidden",
  optimizer: "optimizer",
  compute: "computing",
  wait: "waiting for other ranks",
  rest: "rest of the step",
};
const PARTS = Object.keys(WORDS);
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
  const xOf = (index) => (WIDTH * index) / slices.length;
  const height = (seconds) => HEIGHT - (HEIGHT * seconds) / highest;
  let below = slices.map(() => 0);
  /** @type {Record<string, string>} */
  const paths = {};
  for (const name of PARTS) {
    if (!slices.some((slice) => slice[name] > 0)) continue;
    const above = slices.map((slice, index) => below[index] + (slice[name] ?? 0));
    const edge = (levels) =>
      levels.flatMap((seconds, index) => [
        `${xOf(index).toFixed(1)},${height(seconds).toFixed(2)}`,
        `${xOf(index + 1).toFixed(1)},${height(seconds).toFixed(2)}`,
      ]);
    paths[name] = `M${[...edge(above), ...edge(below).toReversed()].join("L")}Z`;
    below = above;
  }
  return paths;
}

/**
 * The median and the 95th percentile of a rank's sampled steps and their range; too few samples have neither.
 * @param {{ num_samples: number, first_step: number, last_step: number, median_s: number | null, p95_s: number | null }} history
 */
export function stepText(history) {
  const { num_samples: number, first_step: first, last_step: last, p95_s: p95S } = history;
  const steps = `sampled step${number === 1 ? "" : "s"}`;
  if (number < MIN_SAMPLES) return `${count(number)} ${steps}: too few for a median`;
  const which = `${count(number)} ${steps} (${count(first)} to ${count(last)})`;
  const slow = p95S === null ? "too few for a 95th percentile" : `95th percentile ${shortTime(p95S)}`;
  return `median ${shortTime(history.median_s)} of ${which}; ${slow}`;
}

class HistoryStrip {
  constructor() {
    this.paths = PARTS.map((name) => svg("path", { class: `ddp-area-${name}` }));
    const frame = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
    this.picture = svg("svg", { class: "ddp-rank-history", ...frame }, ...this.paths);
    this.text = el("p", { class: "ddp-rank-times" }, "\u00a0");
    this.element = el("div", {}, this.picture, this.text);
  }

  update(history) {
    const named = history.slices.map((slice) =>
      Object.fromEntries(FIELDS.map((field, at) => [field, slice[at]])),
    );
    const shapes = outlines(named.map(divide));
    PARTS.forEach((name, index) => this.paths[index].setAttribute("d", shapes[name] ?? ""));
    const text = stepText(history);
    setText(this.text, text);
    setAttribute(this.picture, "aria-label", text);
  }
}

/** The parts that are in the glossary. */
const TERMS = {
  forward: () => term("forward pass", WORDS.forward),
  backward: () => term("backward pass", WORDS.backward),
  mixed: () => term("all-reduce", WORDS.mixed),
  reduce: () => term("all-reduce", WORDS.reduce),
  optimizer: () => term("optimizer", WORDS.optimizer),
};

// A node is marked as the slowest if one of its ranks takes this many times as long as all others.
const SLOWEST_FACTOR = 1.2;

export class RanksPanel {
  /**
   * `summary` describes how the ranks share the work.
   * @param {() => void} onToggle called when the row of a node is opened or closed
   */
  constructor(summary, onToggle = () => {}) {
    this.rows = new Map();
    this.list = el("ol", { class: "ddp-ranks-list" });
    this.groups = new NodeGroups(this.list, this.rows, onToggle);
    this.empty = paragraph("empty", "Appears with the first steps: one bar for each rank.");
    this.slow = el("p", { class: "ddp-slowest", role: "status" }, "\u00a0");
    this.legend = el("p", { class: "ddp-legend" });
    this.replicas = new ReplicaBadge(summary);
    this.communication = el("p", { class: "ddp-caption ddp-communication" });
    this.element = section(
      "What each rank does",
      "ranks",
      paragraph(
        "caption",
        `${summary.strategy_sharing} The bars show the newest measured step, the strips below them the whole run. About one step a second is sampled, so a rank's median can differ from that of all steps, which is at the top of the page.`,
      ),
      this.communication,
      this.replicas,
      this.legend,
      this.empty,
      this.list,
      this.slow,
    );
  }

  update({ ranks, nodes, insights, rank_history: history, head, fingerprints }) {
    this.replicas.update({ fingerprints, head });
    showText(this.communication, head.communication);
    this.groups.resize(head.num_ranks, head.num_nodes);
    if (nodes) this.sayNodes(nodes);
    if (insights) {
      setText(this.slow, insights.find((insight) => insight.code === "slow_rank")?.message ?? "\u00a0");
    }
    const isPresent = ({ rank }) => rank < head.num_ranks;
    const present = (ranks ?? []).filter(isPresent);
    this.addRows([...(history ?? []).filter(isPresent), ...present]);
    for (const entry of (history ?? []).filter(isPresent)) {
      const strip = this.rows.get(entry.rank).history;
      this.groups.draw(entry.rank, "history", () => strip.update(entry));
    }
    if (!ranks) return;
    show(this.empty, ranks.length === 0);
    const longest = Math.max(...present.map((rank) => rank.step_time_s ?? 0), 1e-9);
    for (const rank of present) {
      const row = this.rows.get(rank.rank);
      this.groups.draw(rank.rank, "step", () => row.update(rank, longest, head));
    }
    this.explain(new Set(present.flatMap((rank) => Object.keys(partsOf(rank)))));
  }

  /** Names the slowest rank of each node, measured without waiting: all others wait for it. */
  sayNodes(rows) {
    this.groups.say(
      rows,
      ({ slowest, slowest_s: seconds }) =>
        seconds === null
          ? "no step measured yet"
          : `longest without waiting: rank ${slowest}, ${shortTime(seconds)} a step`,
      ({ slowest_s: seconds }) => seconds,
      (most, next) => most > SLOWEST_FACTOR * next,
      "slowest",
    );
  }

  /** Updates the legend with the parts that occur. */
  explain(parts) {
    const text = PARTS.filter((part) => parts.has(part));
    if (text.join() === this.explained) return;
    this.explained = text.join();
    this.legend.replaceChildren(
      ...text.map((part) => legendEntry(`ddp-part-${part}`, TERMS[part]?.() ?? WORDS[part])),
    );
  }

  addRows(entries) {
    const missing = new Set(entries.map(({ rank }) => rank).filter((rank) => !this.rows.has(rank)));
    for (const rank of missing) this.rows.set(rank, new Row(rank));
    if (missing.size > 0) this.groups.lay();
  }
}

/** The seconds of each part of a rank's step; empty before the first measurement. */
function partsOf(rank) {
  return rank.step_time_s === null ? {} : divide(rank);
}

class Row {
  constructor(rank) {
    this.step = el("span", {});
    this.memory = el("span", { class: "ddp-rank-device" });
    this.times = el("p", { class: "ddp-rank-times" });
    this.parts = PARTS.map((name) => el("div", { class: `ddp-part ddp-part-${name}` }));
    this.bar = el("div", { class: "ddp-rank-bar", role: "img" }, this.parts);
    this.history = new HistoryStrip();
    const name = el("strong", {}, `rank ${rank}`);
    const head = el("div", { class: "ddp-rank-head" }, name, this.step, this.memory);
    this.element = el("li", {}, head, this.bar, this.times, this.history);
  }

  update(rank, longest, head) {
    // Ranks are sampled once per second, so the last sample may belong to an earlier step.
    const isOlder = !LIVE_STATES.has(head.state) && rank.step !== head.step;
    setText(this.step, `${isOlder ? "last sampled at " : ""}step ${count(rank.step)}`);
    setText(this.memory, rank.peak_memory_bytes ? `peak memory ${bytes(rank.peak_memory_bytes)}` : "");
    if (rank.step_time_s === null) {
      setText(this.times, "no step measured yet");
      return;
    }
    const parts = partsOf(rank);
    PARTS.forEach((name, index) => {
      this.parts[index].style.width = `${(100 * (parts[name] ?? 0)) / longest}%`;
    });
    const text = Object.entries(parts).map(
      ([name, seconds]) => `${WORDS[name].split(/[ ,]/)[0]} ${shortTime(seconds)}`,
    );
    if (rank.hidden_time_s > 0) {
      text.push(`${shortTime(rank.hidden_time_s)} of all-reduce hidden in backward`);
    }
    const unknown = rank.wait_time_s === null ? " (waiting: not measured here)" : "";
    setText(this.times, `${shortTime(rank.step_time_s)} = ${text.join(" + ")}${unknown}`);
    setAttribute(this.bar, "aria-label", this.times.textContent);
  }
}
