// The waterfall picture: from the ideal speed-up to the measured one, with the cost of each part of a step.

import { el, setText } from "../../shared/dom.js";
import { count, number } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { bar, framed } from "./bars.js";
import { PARTS, waterfall } from "./costs.js";

const WORDS = {
  data: () => "loading data",
  computing: () => "computing",
  communicating: () => ["communicating: ", term("all-reduce")],
  waiting: () => "waiting for other ranks",
};

export class WaterfallPicture {
  constructor(about) {
    this.about = about;
    const { box, element, title } = framed("Why not N times as fast", about.caption);
    this.box = box;
    this.title = title;
    this.element = element;
  }

  update(runs) {
    const [one, many] = [runs[0], runs[this.about.waterfall]];
    if (many) setText(this.title, `Why not N times as fast: ${many.name}`);
    const isMeasured = one?.head && many?.head;
    const found = isMeasured ? waterfall(one, many) : null;
    if (found) {
      this.box.replaceChildren(table(found), el("p", { class: "ddp-hint" }, said(one, many)));
      return;
    }
    const isTooShort = one?.isOver && many?.isOver;
    const words = isTooShort
      ? "Too few steps were sampled to divide them."
      : "Appears when both runs have been measured.";
    this.box.replaceChildren(el("p", { class: "ddp-empty" }, words));
  }

  close() {}
}

/** Each bar starts where the previous one ends. */
function table({ best, came, costs, unexplained }) {
  const steps = [...PARTS.map((part) => [WORDS[part](), costs[part], "cost"]), ["unexplained", unexplained, "unexplained"]];
  // If a part takes less than its N-th, bars extend beyond N.
  let level = best;
  const levels = steps.map(([, cost]) => (level -= cost));
  const widest = Math.max(best, came, ...levels);
  const rows = steps.map(([words, cost, kind], index) => {
    const from = index === 0 ? best : levels[index - 1];
    const name = cost < 0 ? "gain" : kind;
    return row(words, bar(Math.max(0, from) / widest, Math.max(0, levels[index]) / widest, { "data-kind": name }), `${cost < 0 ? "+" : "−"} ${number(Math.abs(cost), 2)}`);
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

function row(words, drawn, value) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, words),
    el("td", { class: "ddp-bars-track" }, drawn),
    el("td", { class: "ddp-bars-value" }, value),
  );
}

/** The number of samples behind the picture, and a warning if the runs were disturbed. */
function said(one, many) {
  const samples = (run) => run.history.reduce((sum, rank) => sum + rank.num_samples, 0);
  const words =
    `${number(many.head.num_ranks, 3)} is the ideal speed-up. The speed is that of the median step; its parts are known ` +
    `from ${count(samples(one))} and ${count(samples(many))} sampled steps, and the rest is shown as unexplained.`;
  const isDisturbed = [one, many].some(({ head }) => (head.contended ?? []).length > 0);
  return isDisturbed ? `${words} Other programs used the processor during this time: run it again when it is free.` : words;
} // prettier-ignore
