// Fingerprints: a hash of each rank's weights per step, the distance between the ranks, and whether the
// replicas are identical.

import { Chart } from "../../charts/chart.js";
import { columnHeads, el, icon, setAttribute, setText, show } from "../../shared/dom.js";
import { LIVE_STATES, count, worldSize } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { line, onThemeChange } from "../../shared/theme.js";
import { paragraph, scrollBox, tableRow } from "../../shared/widgets.js";

/** A short text for `fingerprints` of the stream; null if nothing was compared yet. */
export function replicaText(report) {
  if (!report) return null;
  if (report.is_identical) return `replicas identical at step ${count(report.step)}`;
  return `replicas differ since step ${count(report.differ_since)}`;
}

/** The same as a sentence. */
export function replicaSentence(report) {
  const { step, num_ranks: ranks, differ_since: since, identical_until: until } = report;
  if (report.is_identical) {
    const all = ranks === 2 ? "Both ranks have" : `All ${count(ranks)} ranks have`;
    return `${all} the same weights, bit for bit, after step ${count(step)}.`;
  }
  const before = until === null ? "" : `; they were still identical after step ${count(until)}`;
  return `The ranks have different weights: first detected after step ${count(since)}${before}.`;
}

/**
 * Maps each hash to a group: 0 for hashes equal to rank 0's, then 1, 2 … per distinct hash.
 * @param {string[]} hashes
 */
export function groupsOf(hashes) {
  const different = [...new Set(hashes)];
  return hashes.map((hash) => different.indexOf(hash));
}

function kindOf(report) {
  if (report === null) return "none";
  return report.is_identical ? "identical" : "differ";
}

/** The badge in the card of the ranks. */
export class ReplicaBadge {
  constructor(summary) {
    this.why = summary.no_fingerprints;
    this.report = null;
    this.text = el("span", {}, "\u00a0");
    this.icon = el("span", {});
    this.element = el("p", { class: "ddp-replicas", role: "status" }, this.icon, this.text);
    // Reserve its space from the start, so that the layout does not shift.
    show(this.element, worldSize(summary.config) > 1);
  }

  /** Applies a message of the run's stream. */
  update({ fingerprints: report, head }) {
    if (report !== undefined) this.report = report;
    const text = replicaText(this.report) ?? this.wordsWithout(head);
    show(this.element, head.num_ranks > 1);
    setText(this.text, text);
    const kind = kindOf(this.report);
    if (this.element.dataset.replicas !== kind) {
      this.icon.replaceChildren(
        ...(kind === "none" ? [] : [icon(kind === "identical" ? "check" : "warning")]),
      );
      this.element.dataset.replicas = kind;
    }
    setAttribute(this.element, "title", this.report === null ? this.why : replicaSentence(this.report));
  }

  wordsWithout({ state }) {
    if (this.why) return "replicas are not compared";
    return LIVE_STATES.has(state) ? "replicas: compared after the first step" : "replicas were not compared";
  }
}

const HASH_DIGITS = 4;
const MAX_RANKS = 16;
const MAX_COLUMNS = 12;
const MAX_COLUMNS_NARROW = 3;
const ABOUT =
  " is a hash of the bits of all weights of one rank, computed on the rank itself after a step. " +
  "Equal hashes mean equal weights, bit for bit. In a column, equal letters mean equal hashes.";
const DISTANCE =
  "The distance of a rank is the norm of the difference between its weights and those of rank 0, divided by the norm of rank 0's weights.";

/**
 * The Plotly figure of the distances to rank 0.
 * @param {{ steps: number[], distances: (number | null)[][] } | null} curve
 */
function distanceFigure(curve) {
  const { steps, distances } = curve ?? { steps: [], distances: [] };
  return {
    data: distances.slice(0, MAX_RANKS).map((y, rank) => ({
      type: "scatter",
      mode: steps.length > 60 ? "lines" : "lines+markers",
      name: `rank ${rank}`,
      x: steps,
      y,
      line: line(rank),
      marker: { size: 5 },
    })),
    layout: {
      showlegend: true,
      xaxis: { title: { text: "optimizer step" }, rangemode: "tozero" },
      yaxis: {
        title: { text: "distance to rank 0" },
        tickformat: ",.3~%",
        hoverformat: ",.3~%",
        rangemode: "tozero",
      },
    },
  };
}

export class Fingerprints {
  constructor(_runId, summary) {
    this.name = "fingerprints";
    this.title = "Fingerprints: are all replicas the same?";
    this.why = summary.no_fingerprints;
    this.report = null;
    this.isOffered = worldSize(summary.config) > 1;
    this.isOpen = false;
    this.sentence = el("p", { class: "ddp-fingerprints-sentence" });
    this.caption = el("caption", {}, "The first digits of each rank's hash.");
    this.head = el("thead", {});
    this.body = el("tbody", {});
    this.more = el("p", { class: "ddp-hint", hidden: true });
    const table = el("table", { class: "ddp-fingerprints-table" }, this.caption, this.head, this.body);
    this.table = scrollBox("Hashes of the latest steps", table);
    this.chart = new Chart({
      name: "fingerprints",
      title: "Distance between the ranks' weights",
      empty: "The ranks have been identical so far: their distance is 0.",
      figure: () => distanceFigure(this.report?.curve ?? null),
    });
    this.explained = paragraph("hint", DISTANCE);
    this.element = el(
      "div",
      { class: "ddp-fingerprints" },
      paragraph("caption", "A ", term("fingerprint"), ABOUT),
      this.sentence,
      this.table,
      this.more,
      this.chart,
      this.explained,
    );
    this.endTheme = onThemeChange(() => this.chart.redraw());
    this.say();
  }

  open() {
    this.isOpen = true;
    this.say();
  }

  /** Applies a message of the run's stream. */
  update({ fingerprints: report, head }) {
    // Lessons embed the instrument without a fold: then it counts as open once it is in the document.
    const wasOpen = this.isOpen;
    this.isOpen ||= this.element.isConnected && this.element.closest("details") === null;
    this.isOffered = head.num_ranks > 1;
    if (report !== undefined) this.report = report;
    if (this.isOpen && (report !== undefined || !wasOpen)) this.say();
  }

  say() {
    const { report } = this;
    show(this.table, report !== null);
    show(this.chart.element, Boolean(report?.curve));
    show(this.explained, Boolean(report?.curve));
    if (report === null) {
      setText(this.sentence, this.why ?? "Nothing has been compared yet.");
      return;
    }
    setText(this.sentence, replicaSentence(report));
    this.fillTable(report);
    this.chart.invalidate();
    if (this.isOpen && report.curve) this.chart.drawDue();
  }

  fillTable({ newest, num_ranks: numRanks }) {
    const isNarrow = window.matchMedia("(max-width: 700px)").matches;
    const steps = newest.slice(-(isNarrow ? MAX_COLUMNS_NARROW : MAX_COLUMNS));
    const shown = Math.min(numRanks, MAX_RANKS);
    show(this.more, numRanks > shown);
    setText(this.more, `The first ${shown} of ${count(numRanks)} ranks are shown; all are compared.`);
    const heads = ["after step", ...steps.map(({ step }) => count(step))];
    this.head.replaceChildren(el("tr", {}, columnHeads(heads)));
    const groups = steps.map(({ hashes }) => groupsOf(hashes));
    const cells = (rank) => steps.map(({ hashes }, column) => hashOf(hashes[rank], groups[column][rank]));
    const rows = Array.from({ length: shown }, (_, rank) => tableRow(`rank ${rank}`, cells(rank)));
    this.body.replaceChildren(...rows);
  }

  close() {
    this.endTheme();
    this.chart.close();
  }
}

function hashOf(hash, group) {
  const letter = String.fromCharCode(97 + (group % 26));
  return el(
    "span",
    { class: `ddp-hash ddp-hash-${Math.min(group, 3)}`, title: hash },
    el("b", {}, letter),
    el("code", {}, hash.slice(0, HASH_DIGITS)),
  );
}
