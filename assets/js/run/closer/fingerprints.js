// Fingerprints: a hash of each rank's weights per step, and the distance between the ranks.

import { Chart, loadPlotly } from "../../charts/chart.js";
import { el, setText, show } from "../../shared/dom.js";
import { count, worldSize } from "../../shared/format.js";
import { line, onThemeChange } from "../../shared/theme.js";
import { term } from "../../shared/terms.js";
import { complain } from "../../shared/toast.js";
import { groupsOf, replicaSentence } from "./replicas.js";

const HASH_DIGITS = 4;
const MAX_RANKS = 16;
const MAX_COLUMNS = 12;
const MAX_COLUMNS_NARROW = 3;

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

/** @type {(runId: string, summary: any) => import("./look_closer.js").Instrument} */
export function fingerprints(runId, summary) {
  return new Fingerprints(summary);
}

class Fingerprints {
  constructor(summary) {
    this.name = "fingerprints";
    this.title = "Fingerprints: are all replicas the same?";
    this.why = summary.no_fingerprints;
    this.found = null;
    this.isOffered = worldSize(summary.config) > 1;
    this.isOpen = false;
    this.sentence = el("p", { class: "ddp-fingerprints-sentence" });
    this.caption = el("caption", {}, "The first digits of each rank's hash.");
    this.head = el("thead", {});
    this.body = el("tbody", {});
    this.more = el("p", { class: "ddp-hint", hidden: true });
    this.table = el(
      "div",
      { class: "ddp-scroll", tabindex: 0, role: "group", "aria-label": "Hashes of the latest steps" },
      el("table", { class: "ddp-fingerprints-table" }, this.caption, this.head, this.body),
    );
    this.chart = new Chart({
      name: "fingerprints",
      title: "Distance between the ranks' weights",
      empty: "The ranks have been identical so far: their distance is 0.",
      figure: () => distanceFigure(this.found?.curve ?? null),
      onVisible: () => this.draw(),
    });
    this.explained = el(
      "p",
      { class: "ddp-hint" },
      "The distance of a rank is the norm of the difference between its weights and those of rank 0, divided by the norm of rank 0's weights.",
    );
    this.element = el(
      "div",
      { class: "ddp-fingerprints" },
      el(
        "p",
        { class: "ddp-caption" },
        "A ",
        term("fingerprint"),
        " is a hash of the bits of all weights of one rank, computed on the rank itself after a step. ",
        "Equal hashes mean equal weights, bit for bit. In a column, equal letters mean equal hashes.",
      ),
      this.sentence,
      this.table,
      this.more,
      this.chart.element,
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
  update({ fingerprints: found, head }) {
    // Lessons embed the instrument without a fold: then it counts as open once it is in the document.
    const wasOpen = this.isOpen;
    this.isOpen ||= this.element.isConnected && this.element.closest("details") === null;
    this.isOffered = head.num_ranks > 1;
    if (found !== undefined) this.found = found;
    if (this.isOpen && (found !== undefined || !wasOpen)) this.say();
  }

  say() {
    const { found } = this;
    show(this.table, found !== null);
    show(this.chart.element, Boolean(found?.curve));
    show(this.explained, Boolean(found?.curve));
    if (found === null) {
      setText(this.sentence, this.why ?? "Nothing has been compared yet.");
      return;
    }
    setText(this.sentence, replicaSentence(found));
    this.fillTable(found);
    this.chart.isDirty = true;
    this.chart.fullAt = -Infinity;
    this.draw();
  }

  fillTable({ newest, num_ranks: numRanks }) {
    const isNarrow = window.matchMedia("(max-width: 700px)").matches;
    const steps = newest.slice(-(isNarrow ? MAX_COLUMNS_NARROW : MAX_COLUMNS));
    const shown = Math.min(numRanks, MAX_RANKS);
    show(this.more, numRanks > shown);
    setText(this.more, `The first ${shown} of ${count(numRanks)} ranks are shown; all are compared.`);
    this.head.replaceChildren(
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "after step"),
        steps.map(({ step }) => el("th", { scope: "col" }, count(step))),
      ),
    );
    const groups = steps.map(({ hashes }) => groupsOf(hashes));
    this.body.replaceChildren(
      ...Array.from({ length: shown }, (_, rank) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, `rank ${rank}`),
          steps.map(({ hashes }, column) => hashCell(hashes[rank], groups[column][rank])),
        ),
      ),
    );
  }

  draw() {
    if (!this.isOpen || !this.found?.curve) return;
    loadPlotly().then(
      (plotly) => this.element.isConnected && this.chart.isDue && this.chart.draw(plotly),
      () => complain("The chart could not be loaded: plotly.min.js did not arrive. Reload the page."),
    );
  }

  close() {
    this.endTheme();
    this.chart.close();
  }
}

function hashCell(hash, group) {
  const letter = String.fromCharCode(97 + (group % 26));
  return el(
    "td",
    {},
    el(
      "span",
      { class: `ddp-hash ddp-hash-${Math.min(group, 3)}`, title: hash },
      el("b", {}, letter),
      el("code", {}, hash.slice(0, HASH_DIGITS)),
    ),
  );
}
