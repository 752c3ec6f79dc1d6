// Tables whose values are drawn as bars: a row for each rank of each run.

import { lineSample } from "../../charts/line_sample.js";
import { growth } from "../../run/memory.js";
import { el } from "../../shared/dom.js";
import { bytes, shortTime, UNKNOWN } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { color } from "../../shared/theme.js";
import { inlines } from "../text.js";

/** What can be drawn: its title, what it is of a rank, and how it is written. */
const KINDS = {
  memory: {
    title: () => "Memory of each rank, for model and training",
    values: ({ ranks }) => ranks.map((rank) => [rank.rank, growth(rank)]),
    words: bytes,
  },
  wait: {
    title: () => [term("rank", "Each rank"), "’s waiting for the others in a step, mean"],
    values: ({ history }) => history.map(({ rank, slices }) => [rank, meanWait(slices)]),
    words: shortTime,
  },
};
const WAIT = 5; // in a slice of a rank's history

/** @param {(number | null)[][]} slices */
function meanWait(slices) {
  const known = slices.flatMap((slice) => slice[WAIT] ?? []);
  return known.length > 0 ? known.reduce((sum, seconds) => sum + seconds, 0) / known.length : null;
}

/**
 * The bar of a value: from `from` to `to`, both shares of the whole width.
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

/** A frame for a picture that is no chart: its title, its content, what it shows. */
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
  }

  update(runs) {
    const measured = runs
      .filter(({ head }) => head !== null)
      .map((run) => ({ run, values: this.kind.values(run).filter(([, value]) => value !== null) }));
    const most = Math.max(0, ...measured.flatMap(({ values }) => values.map(([, value]) => value)));
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
    const rows = values.map(([rank, value]) => {
      const drawn = bar(0, most > 0 ? value / most : 0);
      /** @type {HTMLElement} */ (drawn.firstChild).style.background = color(run.index);
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, `rank ${rank}`),
        el("td", { class: "ddp-bars-track" }, drawn),
        el("td", { class: "ddp-bars-value" }, this.kind.words(value)),
      );
    });
    const nothing = el("tr", {}, el("td", { colspan: 3 }, run.isOver ? "not measured" : UNKNOWN));
    return el("tbody", {}, el("tr", {}, head), rows.length > 0 ? rows : nothing);
  }

  close() {}
}
