// Tables whose values are drawn as bars: a row for each rank of each run.

import { lineSample } from "../../charts/chart.js";
import { el } from "../../shared/dom.js";
import { bytes, shortTime, UNKNOWN } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { color } from "../../shared/theme.js";
import { inlines } from "../text.js";

/** The memory of a rank by category: field and label. */
const HELD = {
  parameters: { field: "parameter_bytes", words: () => term("parameters", "weights") },
  gradients: { field: "gradient_bytes", words: () => term("gradient", "gradients") },
  optimizer: { field: "optimizer_bytes", words: () => term("optimizer state") },
};

/**
 * The kinds of tables: title, values per rank (one per part of the bar), and the format of their sum.
 * @type {Record<string, { title: () => any, values: (run: any) => [number, (number | null)[]][], words: (value: number) => string, parts?: string[] }>}
 */
const KINDS = {
  memory: {
    title: () => "What each rank holds, counted",
    values: ({ ranks }) => ranks.map((rank) => [rank.rank, Object.values(HELD).map(({ field }) => rank[field] ?? null)]),
    words: bytes,
    parts: Object.keys(HELD),
  },
  wait: {
    title: () => "How long each rank waits for the others in a step",
    values: ({ history }) => history.map(({ rank, slices }) => [rank, [meanWait(slices)]]),
    words: shortTime,
  },
}; // prettier-ignore
const WAIT = 5; // the index of the waiting time in a slice of a rank's history

const total = (parts) => parts.reduce((sum, value) => sum + value, 0);

function legend() {
  const entries = Object.entries(HELD).map(([name, { words }]) =>
    el("span", {}, el("i", { class: `ddp-part ddp-memory-${name}`, "aria-hidden": "true" }), words()),
  );
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
export function framed(words, caption) {
  const title = el("h3", {}, words);
  const box = el("div", {});
  const element = el(
    "div",
    { class: "ddp-card ddp-lesson-picture" },
    title,
    box,
    el("p", { class: "ddp-hint" }, inlines(caption)),
  );
  return { title, box, element };
}

export class BarsPicture {
  constructor(about) {
    this.kind = KINDS[about.bars];
    const { box, element } = framed(this.kind.title(), about.caption);
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
      this.box.replaceChildren(el("p", { class: "ddp-empty" }, "The bars appear with the first run."));
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
        el("td", { class: "ddp-bars-value" }, this.kind.words(total(parts))),
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

  close() {}
}
