// The grid of a run's charts: who has to draw, when, and how long it took.

import { Chart, loadPlotly } from "./charts.js";
import { el } from "./dom.js";
import { lossFigure, memoryFigure, metricFigure, throughputFigure, utilizationFigure } from "./figures.js";
import { fetchJson, runAddress } from "./net.js";
import { onThemeChange } from "./theme.js";
import { Traces } from "./traces.js";

const MAX_LOGGED = 2000;
// Throughput changes slowly: drawing it seldom leaves the time to the loss.
const CALM_MS = 500;

window.ddpDrawLog ??= [];

// What the second chart is called until the first evaluation says it.
const FIRST_METRIC = { language_modelling: "perplexity", tabular_regression: "RMSE" };

export class Board {
  constructor(runId, summary, onError) {
    this.runId = runId;
    this.onError = onError;
    this.traces = new Traces();
    this.checkpoints = [];
    this.isCuda = false;
    this.waiting = [];
    this.isScheduled = false;
    this.cursor = -1;
    this.charts = this.makeCharts(summary);
    this.element = el("div", { class: "ddp-charts" }, this.charts.map((chart) => chart.element));
    this.endTheme = onThemeChange(() => this.redrawAll());
    loadPlotly().then(
      (plotly) => {
        this.plotly = plotly;
        this.schedule();
      },
      () => onError("The charts could not be loaded: plotly.min.js did not arrive. Reload the page."),
    );
  }

  makeCharts(summary) {
    const rankLabel = (rank) => `${this.isCuda ? "GPU of rank" : "CPU rank"} ${rank}`;
    const each = `every ${summary.config.device === "cuda" ? "GPU" : "CPU rank"}`;
    const fetchRange = (low, high) => this.fetchRange(low, high);
    const onVisible = () => this.schedule();
    const chart = (name, title, empty, figure, range = null, everyMs = 0) => {
      const made = new Chart({ name, title, empty, figure, fetchRange: range, everyMs, onVisible });
      made.watches = WATCHES[name];
      return made;
    };
    return [
      chart("loss", "Loss", "The training loss appears with the first steps.",
        (fine) => lossFigure(this.traces, fine, this.checkpoints, summary.task), fetchRange),
      chart("metric", `Validation ${FIRST_METRIC[summary.task] ?? "accuracy"}`,
        "Appears after the first evaluation, by default at the end of an epoch.",
        (fine) => metricFigure(this.traces, fine), fetchRange),
      chart("throughput", "Throughput, all ranks together", "Appears with the first steps.",
        (fine) => throughputFigure(this.traces, fine, summary.sample_unit), fetchRange, CALM_MS),
      chart("utilization", `Utilization of ${each}`, "Measured once a second while the run goes on.",
        () => this.deviceFigure("utilization", "Utilization", utilizationFigure, rankLabel)),
      chart("memory", `Memory of ${each}`, "Measured once a second while the run goes on.",
        () => this.deviceFigure("memory", "Memory", memoryFigure, rankLabel)),
    ]; // prettier-ignore
  }

  deviceFigure(name, word, figure, rankLabel) {
    return { title: `${word} of every ${this.isCuda ? "GPU" : "CPU rank"}`, ...figure(this.traces, rankLabel) };
  }

  /** Takes a payload in; what changed is drawn with the next frame. */
  take(payload, bytes) {
    const changed = this.traces.apply(payload);
    if (payload.type === "snapshot") for (const chart of this.charts) chart.refetchFine();
    if (payload.devices?.length) this.isCuda = payload.devices[0].kind === "cuda";
    if (payload.checkpoints && JSON.stringify(payload.checkpoints) !== JSON.stringify(this.checkpoints)) {
      this.checkpoints = payload.checkpoints;
      changed.add("checkpoints");
    }
    for (const chart of this.charts) {
      if ([...changed].some((name) => chart.watches.test(name))) chart.isDirty = true;
    }
    if (payload.cursor !== this.cursor) {
      this.cursor = payload.cursor;
      this.waiting.push({
        cursor: payload.cursor,
        type: payload.type,
        points: payload.traces.loss?.x.length ?? 0,
        newest_event_time_unix_s: payload.head.time_unix_s,
        bytes,
      });
    }
    this.schedule();
  }

  /** Draws before the next frame, once however often it is asked. */
  schedule() {
    if (this.isScheduled || !this.plotly) return;
    this.isScheduled = true;
    requestAnimationFrame(() => this.drawDue());
  }

  async drawDue() {
    const drawn = this.waiting;
    this.waiting = [];
    const due = this.charts.filter((chart) => chart.isDue);
    const resting = due.filter((chart) => chart.rest > 0);
    try {
      await Promise.all(due.filter((chart) => !resting.includes(chart)).map((chart) => chart.draw(this.plotly)));
    } catch (error) {
      this.onError(`A chart could not be drawn: ${error.message}`);
    }
    this.isScheduled = false;
    if (drawn.length > 0) requestAnimationFrame(() => logDrawn(drawn));
    if (this.waiting.length > 0) this.schedule();
    else if (resting.length > 0) {
      clearTimeout(this.later);
      this.later = setTimeout(() => this.schedule(), Math.min(...resting.map((chart) => chart.rest)));
    }
  }

  async fetchRange(low, high) {
    try {
      return (await fetchJson(runAddress(this.runId, "view", { from: low, to: high }))).traces;
    } catch {
      // The coarse points stay: a zoom must not complain.
      return null;
    }
  }

  redrawAll() {
    for (const chart of this.charts) chart.isDirty = true;
    this.schedule();
  }

  close() {
    clearTimeout(this.later);
    this.endTheme();
    for (const chart of this.charts) chart.close();
  }
}

const WATCHES = {
  loss: /^(loss|validation_loss|checkpoints)$/,
  metric: /^metric:/,
  throughput: /^throughput$/,
  utilization: /^utilization:/,
  memory: /^memory:/,
};

// For measuring: from the newest event's time to the frame in which it could be seen.
function logDrawn(entries) {
  const drawn_unix_ms = Date.now();
  for (const entry of entries) window.ddpDrawLog.push({ ...entry, drawn_unix_ms });
  window.ddpDrawLog.splice(0, Math.max(0, window.ddpDrawLog.length - MAX_LOGGED));
  window.ddpLastDrawn = window.ddpDrawLog.at(-1);
}
