// Compares several runs: their curves in one chart, their results, and the configuration fields that differ.

import { brokenBadge } from "./columns.js";
import { el, section, setText } from "../shared/dom.js";
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
  stepOf,
  UNKNOWN,
  LIVE_STATES,
} from "../shared/format.js";
import { AXES, compareFigure, curveNames, curveText, chartQuery, spanOn } from "./compare_figure.js";
import { MAX_EFFICIENCY, samplesAt, scaling } from "./scaling.js";
import { StatePill, tableRow, textButton } from "../shared/widgets.js";
import {
  runPage,
  address,
  fetchJson,
  reportAddress,
  runAddress,
  sideBySidePage,
  rerunAddress,
} from "../shared/net.js";
import { term } from "../shared/terms.js";
import { titleWithBackLink } from "./actions.js";
import { lineSample, Chart, scaleSelect, select } from "../charts/chart.js";
import { setPreference, preference } from "../shared/browser.js";
import { onThemeChange } from "../shared/theme.js";
import { orShowError } from "../shared/dialog.js";
import { Traces } from "../charts/traces.js";

class CompareTable {
  constructor() {
    const aria = { tabindex: 0, role: "group", "aria-label": "Results and settings" };
    this.box = el("div", { class: "ddp-compare-scroll", ...aria });
    this.element = section("Results and differences", "compare", this.box);
  }

  /** `heads`: the current values of each run, null while unknown. */
  update(runs, fields, heads) {
    const text = JSON.stringify([runs.map((run) => ({ ...run, curve: null })), fields, heads]);
    if (text === this.drawn) return;
    this.drawn = text;
    this.pending = [runs, fields, heads];
    const head = el("tr", {}, el("td", {}), runs.map(headCell));
    const colspan = runs.length + 1;
    const differing = fields.map(({ help, label, values }) =>
      tableRow(el("span", { title: help }, label), values.map(valueText)),
    );
    const same = el("td", { colspan, class: "ddp-hint" }, "All their settings are the same.");
    const part = { scope: "colgroup", colspan, class: "ddp-compare-part" };
    const title = el("tr", {}, el("th", part, "Settings that differ"));
    this.box.replaceChildren(
      el(
        "table",
        { class: "ddp-table ddp-compare-table", style: `--ddp-runs: ${runs.length}` },
        el("thead", {}, head),
        el("tbody", {}, results(runs), speeds(heads, fields)),
        el("tbody", {}, title, fields.length > 0 ? differing : el("tr", {}, same)),
      ),
    );
  }

  /** Redraws the table after the colours changed. */
  redraw() {
    this.drawn = null;
    if (this.pending) this.update(...this.pending);
  }
}

function headCell(run, index) {
  return el(
    "th",
    { scope: "col" },
    lineSample(index),
    el("a", { href: runPage(run.run_id) }, run.name),
    brokenBadge(run.mistake),
    el("a", { href: rerunAddress(run.run_id), class: "ddp-again" }, "Run again with changes"),
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
  const row = (head, text) => tableRow(head, runs.map(text));
  return [
    tableRow("State", states),
    row("Steps", stepOf),
    row(term("loss", "Training loss"), (run) => (isLossNaN(run) ? "NaN" : loss(run.loss))),
    row(term("evaluation", "Best evaluation"), best),
    row("Started", (run) => dateTime(run.created_unix_s)),
    row("Took", (run) => duration(run.took_s)),
  ];
}

/** Rows with the samples and the throughput of each run, and the speed-up if only the ranks differ. */
function speeds(heads, fields) {
  const row = (head, values, text) =>
    tableRow(
      head,
      values.map((value) => (value ? text(value) : UNKNOWN)),
    );
  const pace = ({ pace: found, contended }) => {
    if (!found) return "too short to measure";
    const note = contended?.length ? ", other programs were running" : "";
    return `${number(found.samples_per_s, 3)} samples per second${note}`;
  };
  const gain = ({ speedUp, efficiency }) => {
    // Above this limit the speed-up cannot come from the ranks alone.
    const note = efficiency > MAX_EFFICIENCY ? ", more than this number of ranks allows" : "";
    return `${number(speedUp, 3)} ×${note}`;
  };
  const rows = [
    row("Samples trained on", heads, (head) => count(samplesAt(head, head.step))),
    row(term("throughput", "Throughput, at the median step"), heads, pace),
  ];
  const gains = heads.every(Boolean) ? scaling(heads, fields) : null;
  if (gains) {
    rows.push(row(term("speed-up", "Speed-up"), gains, gain));
    const name = term("parallel efficiency", "Parallel efficiency");
    rows.push(row(name, gains, ({ efficiency }) => percent(efficiency, 0)));
  }
  return rows;
}

function valueText(value) {
  if (value === null || value === "") return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? number(value) : String(value);
}

const ASK_EVERY_MS = 3000;
// In steps; converted to the unit of the other axes.
const SMOOTHINGS = [0, 30, 300];
const SMOOTHED_OVER = { step: "steps", samples: "samples", epochs: "samples", time: "s" };
const DEFAULTS = { axis: "step", smoothing: 30, curves: ["loss"], isLogarithmic: false };

export class CompareView {
  /** `onLink(event)` follows a link without reloading the page. */
  constructor(runIds, onLink) {
    document.title = "Compare · Rankscope";
    this.runIds = runIds;
    this.view = { ...DEFAULTS, ...preference("compare", {}) };
    this.traces = new Map();
    this.runs = [];
    this.fields = [];
    this.charts = new Map();
    /** @type {[string, string][]} */
    const smoothings = SMOOTHINGS.map((steps) => [String(steps), ""]);
    const smooth = (steps) => this.change({ smoothing: Number(steps) });
    this.smoothing = select("Smoothing", smoothings, String(this.view.smoothing), smooth);
    this.nameSmoothings();
    this.curves = el("div", { class: "ddp-curve-choice", role: "group", "aria-label": "Curves" });
    this.controls = el(
      "div",
      { class: "ddp-chart-controls ddp-compare-controls" },
      this.curves,
      select("Drawn over", Object.keys(AXES).map((axis) => [axis, axis === "step" ? "over steps" : `over ${axis}`]), this.view.axis, (axis) => this.change({ axis })),
      scaleSelect(this.view.isLogarithmic, (isLogarithmic) => this.change({ isLogarithmic })),
      this.smoothing,
    ); // prettier-ignore
    this.chartsBox = el("div", { class: "ddp-compare-charts" });
    this.missing = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.table = new CompareTable();
    const report = el("a", { href: reportAddress(runIds), download: "" }, "Lab report");
    const link = runIds.length === 2 ? sideBySideLink(runIds) : null;
    this.element = el(
      "div",
      { class: "ddp ddp-runs-page" },
      titleWithBackLink("Compare", onLink, link, report),
      this.missing,
      el("h2", { class: "ddp-unseen" }, "Charts"),
      this.controls,
      this.chartsBox,
      this.table,
    );
    this.endTheme = onThemeChange(() => {
      this.table.redraw();
      this.draw();
    });
    this.load();
  }

  /** Fetches the runs and their curves; repeats every 3 s while one of the runs is live. */
  async load() {
    clearTimeout(this.timer);
    try {
      const { runs, fields, missing } = await fetchJson(
        address(`live/runs/compare?ids=${this.runIds.map(encodeURIComponent).join(",")}`),
      );
      if (this.isClosed) return;
      this.runs = runs;
      this.fields = fields;
      this.updateTable();
      this.missing.hidden = missing.length === 0;
      setText(this.missing, `No longer available: ${missing.join(", ")}.`);
      await this.loadCurves();
    } catch (error) {
      if (this.isClosed) return;
      this.missing.hidden = false;
      setText(this.missing, error.message);
    }
    const isLive = this.runs.some((run) => LIVE_STATES.has(run.state));
    if (isLive && !this.isClosed) this.timer = setTimeout(() => this.load(), ASK_EVERY_MS);
  }

  async loadCurves() {
    const { span, key: view } = this.asks();
    const shownRuns = this.runs.filter(
      (run) => LIVE_STATES.has(run.state) || this.traces.get(run.run_id)?.view !== view,
    );
    await Promise.all(
      shownRuns.map(async (run) => {
        const query = { since: -1, ...chartQuery({ axis: this.view.axis, smoothing: span }) };
        const payload = await fetchJson(runAddress(run.run_id, "poll", query));
        // The user chose another axis or smoothing since the request was sent.
        if (this.asks().key !== view) return;
        const traces = new Traces();
        traces.apply(payload);
        traces.view = view;
        traces.head = payload.head;
        this.traces.set(run.run_id, traces);
      }),
    );
    this.offerCurves();
    this.nameSmoothings();
    this.updateTable();
    this.draw();
    // The conversion from steps to samples or seconds is known only after the first answer.
    const isLate = this.runs.some((run) => this.traces.get(run.run_id)?.view !== this.asks().key);
    if (isLate && this.asks().key !== view) await this.loadCurves();
  }

  /** The parameters of the request for the current axis and smoothing, and a key that identifies them. */
  asks() {
    const { axis } = this.view;
    const span = this.spanOf(this.view.smoothing);
    return { span, key: `${axis}:${span}` };
  }

  /** The length of a smoothing window in the unit of the axis. */
  spanOf(steps) {
    return spanOn(this.view.axis, steps, this.heads());
  }

  /** The current values of each run; null while unknown. */
  heads() {
    return this.runs.map((run) => this.traces.get(run.run_id)?.head ?? null);
  }

  /** Labels each smoothing option with its length in the unit of the axis. */
  nameSmoothings() {
    SMOOTHINGS.forEach((steps, index) => {
      const span = this.spanOf(steps);
      // The conversion is known only after the curves have arrived.
      const over = span > 0 ? `${number(span)} ${SMOOTHED_OVER[this.view.axis]}` : `${steps} steps’ length`;
      this.smoothing.options[index].textContent = steps === 0 ? "not smoothed" : `smoothed over ${over}`;
    });
  }

  updateTable() {
    this.table.update(this.runs, this.fields, this.heads());
  }

  /** Creates one toggle button per available curve; pressed ones are drawn. */
  offerCurves() {
    const names = curveNames([...this.traces.values()]);
    const chosen = this.view.curves.filter((name) => names.includes(name));
    this.view.curves = chosen.length > 0 ? chosen : ["loss"];
    if (names.join() !== this.offered) {
      this.offered = names.join();
      this.curves.replaceChildren(...names.map((name) => this.curveButton(name)));
    }
    for (const button of this.curves.children) {
      button.setAttribute("aria-pressed", String(this.view.curves.includes(button.dataset.curve)));
    }
    this.layOutCharts();
  }

  curveButton(name) {
    const onclick = () => {
      const { curves } = this.view;
      const isDrawn = curves.includes(name);
      if (isDrawn && curves.length === 1) return;
      this.change({ curves: isDrawn ? curves.filter((other) => other !== name) : [...curves, name] });
    };
    return textButton(curveText(name), onclick, "small", { "data-curve": name });
  }

  /** Creates one chart per chosen curve. */
  layOutCharts() {
    const { curves } = this.view;
    for (const [name, chart] of this.charts) {
      if (curves.includes(name)) continue;
      this.charts.delete(name);
      chart.element.remove();
      chart.close();
    }
    for (const name of curves) {
      if (this.charts.has(name)) continue;
      const chart = new Chart({
        name: `compare-${name.replace(":", "-")}`,
        title: curveText(name),
        empty: "The curves appear when they have loaded.",
        figure: () => compareFigure(this.runs, this.traces, this.view, name),
      });
      chart.element.classList.add("ddp-compare-chart");
      this.charts.set(name, chart);
      this.chartsBox.append(chart.element);
    }
  }

  change(values) {
    this.view = { ...this.view, ...values };
    setPreference("compare", this.view);
    this.nameSmoothings();
    if ("axis" in values) for (const chart of this.charts.values()) chart.unzoom();
    orShowError(this.loadCurves());
  }

  draw() {
    for (const chart of this.charts.values()) {
      chart.invalidate();
      chart.drawDue();
    }
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.endTheme();
    for (const chart of this.charts.values()) chart.close();
  }
}

function sideBySideLink(runIds) {
  const title = "Both runs on one screen with large curves, for a projector";
  return el("a", { href: sideBySidePage(runIds), title }, "Side by side");
}
