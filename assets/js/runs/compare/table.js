// The table below the curves: the results of the runs and the settings that differ.

import { brokenBadge } from "../columns.js";
import { el, section } from "../../shared/dom.js";
import {
  count,
  dateTime,
  duration,
  isLossNaN,
  loss,
  metric,
  metricLabel,
  number,
  percent,
  UNKNOWN,
} from "../../shared/format.js";
import { samplesAt, scaling } from "./figure.js";
import { StatePill } from "../../shared/state_pill.js";
import { runPage } from "../../shared/net.js";
import { term } from "../../shared/terms.js";
import { runAgainPage } from "../actions.js";
import { lineSample } from "../../charts/chart.js";

// Equal to the limit in `ddp_gui/learn/measures.py`: slightly more than 1 is possible, because half of the
// samples may fit a cache better.
const MAX_EFFICIENCY = 1.1;

export class CompareTable {
  constructor() {
    this.box = el("div", {
      class: "ddp-compare-scroll",
      tabindex: 0,
      role: "group",
      "aria-label": "Results and settings",
    });
    this.element = section("Results and differences", "compare", this.box);
  }

  /** `heads`: the current values of each run, null while unknown. */
  update(runs, fields, heads) {
    const text = JSON.stringify([runs.map((run) => ({ ...run, curve: null })), fields, heads]);
    if (text === this.drawn) return;
    this.drawn = text;
    this.held = [runs, fields, heads];
    const head = el(
      "tr",
      {},
      el("td", {}),
      runs.map((run, index) => headCell(run, index)),
    );
    const differing =
      fields.length > 0
        ? fields.map((field) => tableRow(field.label, field.values.map(valueWords), field.help))
        : [
            el(
              "tr",
              {},
              el("td", { colspan: runs.length + 1, class: "ddp-hint" }, "All their settings are the same."),
            ),
          ];
    this.box.replaceChildren(
      el(
        "table",
        { class: "ddp-table ddp-compare-table", style: `--ddp-runs: ${runs.length}` },
        el("thead", {}, head),
        el("tbody", {}, results(runs), speeds(heads, fields)),
        el(
          "tbody",
          {},
          el(
            "tr",
            {},
            el(
              "th",
              { scope: "colgroup", colspan: runs.length + 1, class: "ddp-compare-part" },
              "Settings that differ",
            ),
          ),
          differing,
        ),
      ),
    );
  }

  /** Redraws the table after the colours changed. */
  redraw() {
    this.drawn = null;
    if (this.held) this.update(...this.held);
  }
}

function headCell(run, index) {
  return el(
    "th",
    { scope: "col" },
    lineSample(index),
    el("a", { href: runPage(run.run_id) }, run.name),
    brokenBadge(run.mistake),
    el("a", { href: runAgainPage(run.run_id), class: "ddp-again" }, "Run again with changes"),
  );
}

function results(runs) {
  const states = runs.map((run) => {
    const pill = new StatePill();
    pill.update(run.state, isLossNaN(run), run.detail);
    return pill.element;
  });
  const best = ({ best_metric: found }) =>
    found
      ? `${metric(found.name, found.value)} ${metricLabel(found.name)}, step ${count(found.step)}`
      : UNKNOWN;
  return [
    tableRow("State", states),
    tableRow(
      "Steps",
      runs.map((run) => (run.num_steps ? `${count(run.step)} of ${count(run.num_steps)}` : count(run.step))),
    ),
    tableRow(
      term("loss", "Training loss"),
      runs.map((run) => (isLossNaN(run) ? "NaN" : loss(run.loss))),
    ),
    tableRow(term("evaluation", "Best evaluation"), runs.map(best)),
    tableRow(
      "Started",
      runs.map((run) => dateTime(run.created_unix_s)),
    ),
    tableRow(
      "Took",
      runs.map((run) => duration(run.took_s)),
    ),
  ];
}

/** Rows with the samples and the throughput of each run, and the speed-up if only the ranks differ. */
function speeds(heads, fields) {
  const each = (words) => heads.map((head) => (head ? words(head) : UNKNOWN));
  const rows = [
    tableRow(
      "Samples trained on",
      each((head) => count(samplesAt(head, head.step))),
    ),
    tableRow(
      term("throughput", "Throughput, at the median step"),
      each((head) => {
        if (!head.pace) return "too short to measure";
        const note = head.contended?.length ? ", other programs were running" : "";
        return `${number(head.pace.samples_per_s, 3)} samples per second${note}`;
      }),
    ),
  ];
  const gains = heads.every(Boolean) ? scaling(heads, fields) : null;
  if (!gains) return rows;
  return [
    ...rows,
    tableRow(
      term("speed-up", "Speed-up"),
      gains.map(({ speedUp, efficiency }) => {
        // Above this limit the speed-up cannot come from the ranks alone.
        const note = efficiency > MAX_EFFICIENCY ? ", more than this number of ranks allows" : "";
        return `${number(speedUp, 3)} ×${note}`;
      }),
    ),
    tableRow(
      term("parallel efficiency", "Parallel efficiency"),
      gains.map(({ efficiency }) => percent(efficiency, 0)),
    ),
  ];
}

/**
 * @param {string | HTMLElement} label
 * @param {string | null} help
 */
function tableRow(label, cells, help = null) {
  return el(
    "tr",
    {},
    el("th", { scope: "row", title: help }, label),
    cells.map((cell) => el("td", {}, cell)),
  );
}

function valueWords(value) {
  if (value === null || value === "") return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? number(value) : String(value);
}
