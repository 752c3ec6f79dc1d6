// The charts of a run: schedules drawing and logs its duration.

import { Chart, loadPlotly } from "../../charts/chart.js";
import { CheckpointMenu, LearningRateControl, LossControls, MetricControls } from "./controls.js";
import { el } from "../../shared/dom.js";
import {
  lossFigure,
  metricFigure,
  placeFromChart,
  stepFigure,
  firstEvaluationText,
  lossText,
  stepText,
} from "./figures.js";
import { smoothingOf } from "../../charts/style.js";
import { checkpointText, commandText } from "../history.js";
import { GrowingAxis } from "../../charts/axes.js";
import { LIVE_STATES } from "../../shared/format.js";
import { fetchJson, runAddress, askEvery } from "../../shared/net.js";
import { onThemeChange } from "../../shared/theme.js";
import { afterPaint } from "../../shared/browser.js";
import { Traces } from "../../charts/traces.js";

const MAX_LOGGED = 2000;
// Charts of slowly changing values are drawn less often than the loss.
const SLOW_CHART_EVERY_MS = 1000;
// Added to the delay of the timer, so that new loss points in this interval draw the other charts as well.
const EXTRA_DELAY_MS = 200;
const REFERENCES_EVERY_MS = 5000;
const LOSS_TRACES = new Set(["loss", "validation_loss", "marks"]);

window.ddpDrawLog ??= [];

export class Board {
  /** `onLook(view)` is called when the user chooses another axis or smoothing. */
  constructor(runId, summary, { onError, onLook, onResume }) {
    this.runId = runId;
    this.onError = onError;
    /** @type {Record<string, any>[]} */
    this.happened = [];
    this.traces = new Traces();
    this.axis = new GrowingAxis();
    this.checkpoints = [];
    this.marks = [];
    this.waiting = [];
    this.isScheduled = false;
    this.isLive = true;
    this.step = 0;
    this.numSteps = null;
    /** @type {any} The run's current values; null until the first payload. */
    this.head = null;
    this.cursor = -1;
    /** @type {{ label: string, metric: string, value: number }[]} Reference lines for validation metrics. */
    this.references = [];
    /** @type {(() => void) | null} */
    this.endReferences = null;
    this.controls = new LossControls((view, isNewData) => {
      if (isNewData) onLook(view);
      this.redrawAll();
    });
    this.metricControls = new MetricControls(() => this.redrawAll());
    this.rate = onResume && !summary.config.script ? new LearningRateControl(runId, summary, onResume) : null;
    this.charts = this.makeCharts(summary);
    this.menu = new CheckpointMenu(runId, onResume);
    this.charts[0].box.append(this.menu.element);
    this.element = el("div", { class: "ddp-charts" }, this.charts);
    this.endTheme = onThemeChange(() => afterPaint(() => this.redrawAll()));
  }

  /** Loads Plotly. Called after the first data request was sent, because compiling Plotly takes a while. */
  begin() {
    loadPlotly().then(
      (plotly) => {
        this.plotly = plotly;
        this.schedule();
      },
      () => this.onError("The charts could not be loaded (plotly.min.js). Reload the page."),
    );
  }

  get view() {
    return { ...this.controls.view, end: this.endOfAxis() };
  }

  /** The end of the x-axis of all charts: the run's length if it is live, its last step afterwards. */
  endOfAxis() {
    const isOverSteps = this.controls.view.axis === "step";
    // The step can exceed the last point, because a NaN loss is not a point of the curve.
    const last = Math.max(this.traces.get("loss").x.at(-1) ?? 0, isOverSteps ? this.step : 0);
    if (!this.isLive) return last;
    return isOverSteps && this.numSteps ? Math.max(last, this.numSteps) : this.axis.endFor(last);
  }

  makeCharts(summary) {
    const fetchRange = (low, high) => this.fetchRange(low, high);
    const onVisible = () => this.schedule();
    const chart = ({ watches, emptyText, figure, ...options }) => {
      const made = new Chart({
        fetchRange,
        onVisible,
        // No text until the run's values have arrived and show whether there will be points.
        empty: "",
        everyMs: SLOW_CHART_EVERY_MS,
        figure: (fine, room) => ({ empty: this.head && emptyText(this.head), ...figure(fine, room) }),
        ...options,
      });
      made.watches = watches;
      return made;
    };
    const ofSteps = summary.charts.map((about) =>
      chart({
        name: about.column,
        title: about.title,
        term: about.term,
        emptyText: (head) => stepText(head, about),
        watches: (name) => name === about.column,
        figure: (fine) => stepFigure(this.traces, fine, this.view, about, this.head),
        controls: about.column === "learning_rate" ? this.rate?.element : null,
      }),
    );
    return [
      chart({
        name: "loss",
        title: "Loss",
        term: "loss",
        emptyText: lossText,
        watches: (name) => LOSS_TRACES.has(name),
        figure: (fine, { isNarrow }) =>
          lossFigure(this.traces, fine, { ...this.view, isNarrow }, this.marks, summary.loss_words),
        everyMs: 0,
        controls: this.controls.element,
      }),
      chart({
        name: "metric",
        title: `Validation ${summary.first_metric ?? ""}`.trim(),
        term: "evaluation",
        emptyText: (head) =>
          summary.config.script
            ? "The script has reported no numbers: watch.log(accuracy=0.91) draws a curve here."
            : firstEvaluationText(head, summary.config.eval_every_steps),
        watches: (name) => name.startsWith("metric:"),
        figure: (fine) => {
          this.metricControls.offer(this.traces);
          return metricFigure(this.traces, fine, this.view, this.metricControls.chosen, this.references);
        },
        controls: this.metricControls.element,
      }),
      ...ofSteps,
    ];
  }

  /** Applies a payload; changed charts are drawn in the next frame. */
  take(payload, bytes) {
    const changed = this.traces.apply(payload);
    this.head = payload.head;
    const { state, num_steps: numSteps } = payload.head;
    const isLive = LIVE_STATES.has(state);
    this.rate?.update(payload);
    this.askForReferences();
    this.step = payload.head.step;
    if (isLive !== this.isLive || numSteps !== this.numSteps) {
      [this.isLive, this.numSteps] = [isLive, numSteps];
      for (const chart of this.charts) chart.isDirty = true;
    }
    if (payload.type === "snapshot") {
      for (const chart of this.charts) chart.refetchFine();
    }
    if (this.noteMarks(payload)) changed.add("marks");
    for (const chart of this.charts) {
      // The text of an empty chart depends on the run's current values.
      if (!chart.hasPoints || [...changed].some((name) => chart.watches(name))) chart.isDirty = true;
    }
    if (payload.cursor !== this.cursor) {
      this.cursor = payload.cursor;
      this.waiting.push({
        cursor: payload.cursor,
        type: payload.type,
        points: payload.traces.loss?.y.length ?? 0,
        newest_event_time_unix_s: payload.head.time_unix_s,
        bytes,
      });
    }
    this.schedule();
  }

  /**
   * Collects the marks of the loss curve: checkpoints on disk, commands, warnings. Returns true if they may
   * have changed.
   */
  noteMarks({ type, marks, checkpoints }) {
    if (type === "snapshot") this.happened = [];
    this.happened.push(
      ...marks.filter((mark) => ["checkpoint", "command", "warning", "error"].includes(mark.kind)),
    );
    if (checkpoints) this.checkpoints = checkpoints;
    if (type !== "snapshot" && marks.length === 0 && !checkpoints) return false;
    this.menu.take(this.checkpoints);
    const saved = new Map(
      this.happened.filter((mark) => mark.kind === "checkpoint").map((mark) => [mark.step, mark]),
    );
    this.marks = [
      ...this.checkpoints.map((item) => ({
        kind: "checkpoint",
        step: item.step,
        active_s: saved.get(item.step)?.active_s,
        reason: item.reason,
        text: checkpointText(item),
      })),
      ...this.happened
        // A checkpoint on request already has a mark.
        .filter((mark) => mark.kind === "command" && !(mark.name === "checkpoint" && mark.accepted))
        .map((mark) => ({ ...mark, text: commandText(mark) })),
      ...this.happened
        .filter((mark) => mark.kind === "warning" || mark.kind === "error")
        .map((mark) => ({ ...mark, kind: "warning", text: mark.message })),
    ];
    return true;
  }

  /** Draws before the next frame, at most once per frame. */
  schedule() {
    if (this.isScheduled || !this.plotly) return;
    this.isScheduled = true;
    requestAnimationFrame(() => this.drawDue());
  }

  /**
   * Draws all charts that are due, up to the first that needs a full drawing, which takes most of a frame.
   * The loss comes first, but never takes two full drawings in a row while other charts wait.
   */
  async drawDue() {
    const drawn = this.waiting;
    this.waiting = [];
    const due = this.charts.filter((chart) => chart.isDue);
    const left = new Set(due);
    try {
      for (const chart of this.inTurn(due.filter(({ rest }) => rest <= 0))) {
        left.delete(chart);
        if (await chart.draw(this.plotly)) {
          this.wasLossWhole = chart === this.charts[0];
          break;
        }
      }
    } catch (error) {
      this.onError(`A chart could not be drawn: ${error.message}`);
    }
    if (!left.has(this.charts[0])) this.menu.attach(this.charts[0].plot);
    this.isScheduled = false;
    if (drawn.length > 0) afterFrame(() => logDrawn(drawn));
    if (this.waiting.length > 0 || [...left].some((chart) => chart.rest <= 0)) this.schedule();
    else this.scheduleLater([...left]);
  }

  inTurn(ready) {
    return this.wasLossWhole && ready[0] === this.charts[0] ? [...ready.slice(1), ready[0]] : ready;
  }

  /**
   * Schedules charts that are not yet due. Usually new loss points draw them earlier, in a frame that is
   * needed anyway.
   */
  scheduleLater(charts) {
    clearTimeout(this.later);
    if (charts.length === 0) return;
    const restMs = Math.min(...charts.map((chart) => chart.rest));
    this.later = setTimeout(() => this.schedule(), restMs + EXTRA_DELAY_MS);
  }

  /** After the first evaluation, fetches the reference lines until the server has fitted the linear model. */
  askForReferences() {
    if (this.endReferences || Object.keys(this.head.metrics ?? {}).length === 0) return;
    const ask = async () => {
      const { lines, is_complete: isComplete } = await fetchJson(runAddress(this.runId, "references"));
      if (isComplete) this.endReferences?.();
      if (lines.length === this.references.length) return;
      this.references = lines;
      for (const chart of this.charts) chart.isDirty ||= chart.watches("metric:");
      this.schedule();
    };
    // On errors the chart remains as it is; the next request may succeed.
    this.endReferences = askEvery(REFERENCES_EVERY_MS, ask);
  }

  async fetchRange(low, high) {
    const { axis } = this.view;
    const [from, to] = [low, high].map((x) => placeFromChart(x, this.view));
    try {
      return (
        await fetchJson(runAddress(this.runId, "view", { from, to, axis, ...smoothingOf(this.view).query }))
      ).traces;
    } catch {
      // Keep the coarse points: a zoom must not show an error.
      return null;
    }
  }

  redrawAll() {
    for (const chart of this.charts) {
      chart.isDirty = true;
      chart.fullAt = -Infinity;
      chart.drawnAt = -Infinity;
    }
    this.schedule();
  }

  /** Resets all zooms after a change of the axis. */
  unzoomAll() {
    for (const chart of this.charts) chart.unzoom();
  }

  close() {
    clearTimeout(this.later);
    this.endReferences?.();
    this.endTheme();
    for (const chart of this.charts) chart.close();
  }
}

// Benchmarks wait for the next frame, which forces an additional frame: nothing else should.
const afterFrame = (act) => (window.ddpTimesFrames ? requestAnimationFrame(act) : setTimeout(act));

// For benchmarks: the delay from the latest event to the frame that shows it.
function logDrawn(entries) {
  const drawn_unix_ms = Date.now();
  for (const entry of entries) window.ddpDrawLog.push({ ...entry, drawn_unix_ms });
  window.ddpDrawLog.splice(0, Math.max(0, window.ddpDrawLog.length - MAX_LOGGED));
  window.ddpLastDrawn = window.ddpDrawLog.at(-1);
}
