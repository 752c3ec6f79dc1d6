// Pictures of a lesson that are drawn as bars: the values of each rank, and the waterfall of a speed-up.

import { lineSample } from "../charts/chart.js";
import { el, setText } from "../shared/dom.js";
import { bytes, shortTime, UNKNOWN, count, number } from "../shared/format.js";
import { term } from "../shared/terms.js";
import { color } from "../shared/theme.js";
import { inlines } from "./text.js";
import { speedUp } from "../runs/scaling.js";
import { legendEntry, paragraph } from "../shared/widgets.js";

/** The memory of a rank by category: field and label. */
const HELD = {
  parameters: { field: "parameter_bytes", label: () => term("parameters", "weights") },
  gradients: { field: "gradient_bytes", label: () => term("gradient", "gradients") },
  optimizer: { field: "optimizer_bytes", label: () => term("optimizer state") },
};

/**
 * The kinds of tables: title, values per rank (one per part of the bar), and the format of their sum.
 * @type {Record<string, { title: () => any, values: (run: any) => [number, (number | null)[]][], format: (value: number) => string, parts?: string[] }>}
 */
const KINDS = {
  memory: {
    title: () => "What each rank holds, counted",
    values: ({ ranks }) => ranks.map((rank) => [rank.rank, Object.values(HELD).map(({ field }) => rank[field] ?? null)]),
    format: bytes,
    parts: Object.keys(HELD),
  },
  wait: {
    title: () => "How long each rank waits for the others in a step",
    values: ({ history }) => history.map(({ rank, slices }) => [rank, [meanWait(slices)]]),
    format: shortTime,
  },
}; // prettier-ignore
const WAIT = 5; // the index of the waiting time in a slice of a rank's history

const total = (parts) => parts.reduce((sum, value) => sum + value, 0);

function legend() {
  const entries = Object.entries(HELD).map(([name, { label }]) => legendEntry(`ddp-memory-${name}`, label()));
  return el("p", { class: "ddp-legend" }, entries);
}

/** @param {(number | null)[][]} slices */
function meanWait(slices) {
  const known = slices.flatMap((slice) => slice[WAIT] ?? []);
  return known.length > 0 ? known.reduce((sum, seconds) => sum + seconds, 0) / known.length : null;
}

/**
 * A bar between two fractions of the full width.
 * @param {number} from
 * @param {number} to
 * @param {Record<string, string>} [attributes]
 */
export function bar(from, to, attributes = {}) {
  const inside = el("div", { class: "ddp-bar-inside", ...attributes });
  inside.style.marginLeft = `${100 * Math.min(from, to)}%`;
  inside.style.width = `${100 * Math.abs(to - from)}%`;
  return el("div", { class: "ddp-bar", "aria-hidden": "true" }, inside);
}

/** A frame for a picture that is not a chart: title, content, caption. */
function framed(text, caption) {
  const title = el("h3", {}, text);
  const box = el("div", {});
  const element = el(
    "div",
    { class: "ddp-card ddp-lesson-picture" },
    title,
    box,
    paragraph("hint", inlines(caption)),
  );
  return { title, box, element };
}

export class BarsPicture {
  constructor(picture) {
    this.kind = KINDS[picture.bars];
    const { box, element } = framed(this.kind.title(), picture.caption);
    this.box = box;
    this.element = element;
    if (this.kind.parts) box.before(legend());
  }

  update(runs) {
    const measured = runs
      .filter(({ head }) => head !== null)
      .map((run) => ({ run, values: this.kind.values(run).filter(([, parts]) => !parts.includes(null)) }));
    const most = Math.max(0, ...measured.flatMap(({ values }) => values.map(([, parts]) => total(parts))));
    if (measured.length === 0) {
      this.box.replaceChildren(paragraph("empty", "The bars appear with the first run."));
      return;
    }
    this.box.replaceChildren(
      el(
        "table",
        { class: "ddp-bars" },
        measured.map((each) => this.group(each, most)),
      ),
    );
  }

  group({ run, values }, most) {
    const head = el("th", { scope: "rowgroup", colspan: 3 }, lineSample(run.index), run.name);
    const rows = values.map(([rank, parts]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, `rank ${rank}`),
        el("td", { class: "ddp-bars-track" }, this.bar(parts, most, run.index)),
        el("td", { class: "ddp-bars-value" }, this.kind.format(total(parts))),
      ),
    );
    const nothing = el("tr", {}, el("td", { colspan: 3 }, run.isOver ? "not measured" : UNKNOWN));
    return el("tbody", {}, el("tr", {}, head), rows.length > 0 ? rows : nothing);
  }

  bar(parts, most, index) {
    const names = this.kind.parts;
    const insides = parts.map((value, at) => {
      const inside = el("div", { class: names ? `ddp-memory-${names[at]}` : "ddp-bar-inside" });
      inside.style.width = `${most > 0 ? (100 * value) / most : 0}%`;
      if (!names) inside.style.background = color(index);
      return inside;
    });
    return el("div", { class: "ddp-bar", "aria-hidden": "true" }, insides);
  }
}

// The waterfall from the ideal speed-up N to the measured one: what each part of a step costs with N ranks
// beyond its N-th with one rank. The speed is that of the median step, because in a run of seconds a single
// disturbed step would outweigh hundreds.

/** The order of the values in a slice of a rank's history, as the server sends them. */
const FIELDS = ["step", "data", "forward", "backward", "optimizer", "wait", "all_reduce", "hidden"];

/** The parts of a step in the order of the picture. */
export const PARTS = ["data", "computing", "communicating", "waiting"];

/**
 * The mean seconds of each part of a step, over the samples of all ranks whose step time lies in the middle
 * half. (A median would not work: of two ranks only one waits.) Null without samples.
 * @param {{ slices: (number | null)[][] }[]} history
 * @returns {Record<string, number> | null}
 */
export function partsOf(history) {
  const slices = history.flatMap((rank) => rank.slices).map(named);
  const measured = slices.filter(({ forward, backward }) => forward !== null && backward !== null);
  if (measured.length === 0) return null;
  const sorted = measured.toSorted((one, other) => one.step - other.step);
  const middleHalf = sorted.slice(Math.floor(sorted.length / 4), Math.ceil((3 * sorted.length) / 4));
  const divided = middleHalf.map((slice) => divide(slice, history.length > 1));
  return Object.fromEntries(
    PARTS.map((part) => [part, divided.reduce((sum, each) => sum + each[part], 0) / divided.length]),
  );
}

/** @returns {Record<string, any>} */
function named(slice) {
  return Object.fromEntries(FIELDS.map((field, at) => [field, slice[at] ?? null]));
}

/**
 * Splits a slice. A single rank neither waits nor communicates: its forward and backward pass is all
 * computing.
 * @param {Record<string, any>} slice
 * @param {boolean} hasOthers
 */
function divide(slice, hasOthers) {
  const { data, forward, backward, optimizer, wait, all_reduce: allReduce, hidden } = slice;
  const waiting = hasOthers ? (wait ?? 0) : 0;
  const seen = hasOthers && allReduce !== null ? Math.max(waiting, allReduce - (hidden ?? 0)) : waiting;
  return {
    data: data ?? 0,
    computing: forward + Math.max(0, backward - seen) + (optimizer ?? 0),
    communicating: seen - waiting,
    waiting,
  };
}

/**
 * The ideal speed-up with N ranks, the measured one, and the costs that explain the difference. Costs are
 * fractions of one rank's step time: 0.3 is three tenths of a rank's work per step.
 * @param {{ head: any, history: any[] }} one the run with fewer ranks
 * @param {{ head: any, history: any[] }} many
 * @returns {{ best: number, came: number, costs: Record<string, number>, unexplained: number } | null}
 */
export function waterfall(one, many) {
  const [before, after] = [partsOf(one.history), partsOf(many.history)];
  const came = speedUp(many.head, one.head);
  if (!before || !after || came === null) return null;
  const best = many.head.num_ranks / one.head.num_ranks;
  // The factor by which a part would change if only the number of ranks and the batch had an effect.
  const share = many.head.global_batch / one.head.global_batch / best;
  const step_s = many.head.pace.step_time_s;
  const costs = Object.fromEntries(
    PARTS.map((part) => [part, (best * (after[part] - share * before[part])) / step_s]),
  );
  const explained = Object.values(costs).reduce((sum, cost) => sum + cost, 0);
  return { best, came, costs, unexplained: best - came - explained };
}

// The waterfall picture: from the ideal speed-up to the measured one, with the cost of each part of a step.

const WORDS = {
  data: () => "loading data",
  computing: () => "computing",
  communicating: () => ["communicating: ", term("all-reduce")],
  waiting: () => "waiting for other ranks",
};

export class WaterfallPicture {
  constructor(picture) {
    this.picture = picture;
    const { box, element, title } = framed("Why not N times as fast", picture.caption);
    this.box = box;
    this.title = title;
    this.element = element;
  }

  update(runs) {
    const [one, many] = [runs[0], runs[this.picture.waterfall]];
    if (many) setText(this.title, `Why not N times as fast: ${many.name}`);
    const isMeasured = one?.head && many?.head;
    const steps = isMeasured ? waterfall(one, many) : null;
    if (steps) {
      this.box.replaceChildren(table(steps), paragraph("hint", sampleNote(one, many)));
      return;
    }
    const isTooShort = one?.isOver && many?.isOver;
    const text = isTooShort
      ? "Too few steps were sampled to divide them."
      : "Appears when both runs have been measured.";
    this.box.replaceChildren(paragraph("empty", text));
  }
}

/** Each bar starts where the previous one ends. */
function table({ best, came, costs, unexplained }) {
  const steps = [...PARTS.map((part) => [WORDS[part](), costs[part], "cost"]), ["unexplained", unexplained, "unexplained"]];
  // If a part takes less than its N-th, bars extend beyond N.
  let level = best;
  const levels = steps.map(([, cost]) => (level -= cost));
  const widest = Math.max(best, came, ...levels);
  const rows = steps.map(([text, cost, kind], index) => {
    const from = index === 0 ? best : levels[index - 1];
    const name = cost < 0 ? "gain" : kind;
    return row(text, bar(Math.max(0, from) / widest, Math.max(0, levels[index]) / widest, { "data-kind": name }), `${cost < 0 ? "+" : "−"} ${number(Math.abs(cost), 2)}`);
  });
  return el(
    "table",
    { class: "ddp-bars" },
    el(
      "tbody",
      {},
      row(`${number(best, 3)} times as fast`, bar(0, best / widest, { "data-kind": "whole" }), `${number(best, 3)} ×`),
      rows,
      row(el("strong", {}, "measured"), bar(0, came / widest, { "data-kind": "whole" }), el("strong", {}, `${number(came, 3)} ×`)),
    ),
  );
} // prettier-ignore

function row(text, drawn, value) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, text),
    el("td", { class: "ddp-bars-track" }, drawn),
    el("td", { class: "ddp-bars-value" }, value),
  );
}

/** The number of samples behind the picture, and a warning if the runs were disturbed. */
function sampleNote(one, many) {
  const samples = (run) => run.history.reduce((sum, rank) => sum + rank.num_samples, 0);
  const text =
    `${number(many.head.num_ranks, 3)} is the ideal speed-up. The speed is that of the median step; its parts are known ` +
    `from ${count(samples(one))} and ${count(samples(many))} sampled steps, and the rest is shown as unexplained.`;
  const isDisturbed = [one, many].some(({ head }) => (head.contended ?? []).length > 0);
  return isDisturbed ? `${text} Other programs used the processor during this time: run it again when it is free.` : text;
} // prettier-ignore
