// Several runs beside each other: their curves in one chart, their results, and what differs in their configurations.

import { Chart, loadPlotly } from "../../charts/chart.js";
import { el, setText } from "../../shared/dom.js";
import { compareFigure, curveNames, curveWords } from "./figure.js";
import { CompareTable } from "./table.js";
import { LIVE_STATES } from "../../shared/format.js";
import { address, fetchJson, runAddress } from "../../shared/net.js";
import { prefer, preference } from "../../shared/prefs.js";
import { onThemeChange } from "../../shared/theme.js";
import { complain } from "../../shared/toast.js";
import { Traces } from "../../charts/traces.js";

const ASK_EVERY_MS = 3000;
const USUAL = { axis: "step", smoothing: 30, curve: "loss" };

export class CompareView {
  /** `onLink(event)` follows a link inside the page. */
  constructor(runIds, onLink) {
    document.title = "Compare · DDP, live";
    this.runIds = runIds;
    this.look = { ...USUAL, ...preference("compare", {}) };
    this.traces = new Map();
    this.runs = [];
    this.curve = select("Curve", [["loss", "training loss"]], this.look.curve, (curve) =>
      this.change({ curve }),
    );
    this.chart = new Chart({
      name: "compare",
      title: "Training loss",
      empty: "The curves appear when they have loaded.",
      figure: () => compareFigure(this.runs, this.traces, this.look),
      onVisible: () => this.draw(),
      controls: el(
        "div",
        { class: "ddp-chart-controls" },
        this.curve,
        select("Drawn over", [["step", "over steps"], ["time", "over time"]], this.look.axis, (axis) => this.change({ axis }, true)),
        select("Smoothing", [["0", "raw"], ["30", "mean of 30 steps"], ["300", "mean of 300 steps"]], String(this.look.smoothing), (steps) => this.change({ smoothing: Number(steps) }, true)),
      ), // prettier-ignore
    });
    this.chart.element.classList.add("ddp-compare-chart");
    this.missing = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.table = new CompareTable();
    this.element = el(
      "div",
      { class: "ddp ddp-runs-page" },
      el(
        "div",
        { class: "ddp-list-title" },
        el("h1", {}, "Compare"),
        el("a", { href: address("runs"), onclick: onLink }, "All runs"),
      ),
      this.missing,
      el("h2", { class: "ddp-unseen" }, "Chart"),
      this.chart.element,
      this.table.element,
    );
    this.endTheme = onThemeChange(() => {
      this.table.redraw();
      this.draw();
    });
    loadPlotly().then(
      (plotly) => {
        this.plotly = plotly;
        this.draw();
      },
      () => complain("The charts could not be loaded: plotly.min.js did not arrive. Reload the page."),
    );
    this.load();
  }

  /** Asks what the runs are and for their curves; again after a while, as long as one of them goes on. */
  async load() {
    clearTimeout(this.timer);
    try {
      const { runs, fields, missing } = await fetchJson(
        address(`live/runs/compare?ids=${this.runIds.map(encodeURIComponent).join(",")}`),
      );
      if (this.isClosed) return;
      this.runs = runs;
      this.table.update(runs, fields);
      this.missing.hidden = missing.length === 0;
      setText(this.missing, `No longer there: ${missing.join(", ")}.`);
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
    const { axis, smoothing } = this.look;
    const asked = this.runs.filter(
      (run) => LIVE_STATES.has(run.state) || this.traces.get(run.run_id)?.look !== axis + smoothing,
    );
    await Promise.all(
      asked.map(async (run) => {
        const payload = await fetchJson(runAddress(run.run_id, "poll", { since: -1, axis, smoothing }));
        const traces = new Traces();
        traces.apply(payload);
        traces.look = axis + smoothing;
        this.traces.set(run.run_id, traces);
      }),
    );
    this.offerCurves();
    this.draw();
  }

  offerCurves() {
    const names = curveNames([...this.traces.values()]);
    if (names.join() === this.offered) return;
    this.offered = names.join();
    if (!names.includes(this.look.curve)) this.look.curve = "loss";
    this.curve.replaceChildren(
      ...names.map((name) =>
        el("option", { value: name, selected: name === this.look.curve }, curveWords(name)),
      ),
    );
  }

  change(values, isNewData = false) {
    this.look = { ...this.look, ...values };
    prefer("compare", this.look);
    this.chart.unzoom();
    if (isNewData) this.loadCurves().catch((error) => complain(error.message));
    else this.draw();
  }

  draw() {
    this.chart.isDirty = true;
    if (this.plotly && this.element.isConnected) this.chart.draw(this.plotly);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.endTheme();
    this.chart.close();
  }
}

function select(label, options, chosen, onChoose) {
  const made = el("select", { "aria-label": label, class: "ddp-select-small" });
  made.append(...options.map(([value, words]) => el("option", { value, selected: value === chosen }, words)));
  made.addEventListener("change", () => onChoose(made.value));
  return made;
}
