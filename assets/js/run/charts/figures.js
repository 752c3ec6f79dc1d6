// The Plotly figures of a run's charts, and the text of an empty chart.

import { DAY_ZERO_MS, smoothingOf, timeAxis } from "../../charts/style.js";
import { refine, valueAt } from "../../charts/traces.js";
import { LIVE_STATES, SHARES, count, duration, isLossNaN, metricLabel, number } from "../../shared/format.js";
import { chartColors, color, line } from "../../shared/theme.js";

/** The prefix of the trace names of checkpoints. */
export const CHECKPOINT = "checkpoint";
const PREFERRED_METRICS = ["perplexity", "rmse", "accuracy"];

/** Training and validation loss, with marks for events of the run. `view.isNarrow` shortens the legend. */
export function lossFigure(traces, fine, view, marks, emptyText) {
  const training = refine(traces.get("loss"), fine.loss);
  const smooth = refine(traces.get("loss_smooth"), fine.loss_smooth);
  const validation = refine(traces.get("validation_loss"), fine.validation_loss);
  // Marks without a curve are not drawn.
  if (![training, validation].some(hasNumber)) return { data: [], layout: {} };
  const hasSmooth = view.smoothing > 1 && smooth.x.length > 0;
  const raw = {
    line: { ...line(0), width: hasSmooth ? 1 : 1.6 },
    opacity: hasSmooth ? 0.35 : 1,
    showlegend: !(hasSmooth && view.isNarrow),
  };
  const smoothName = view.isNarrow ? "training" : `training, smoothed over ${smoothingOf(view).text}`;
  const data = [
    scatter(hasSmooth ? "training, each step" : "training", training, view, raw),
    hasSmooth ? scatter(smoothName, smooth, view, { line: { ...line(0), width: 2.2 } }) : null,
    scatter("validation", validation, view, evaluations(1)),
    ...checkpointTraces(marks, view),
    ...markTraces(marks, hasSmooth ? smooth : training, view),
  ].filter((trace) => trace !== null && trace.x.length > 0);
  const text = emptyText ? `loss (${emptyText})` : "loss";
  return {
    data,
    end: endOf(view),
    layout: {
      showlegend: data.length > 1,
      xaxis: axisOf(view, training),
      yaxis: {
        title: { text },
        type: view.isLogarithmic ? "log" : "linear",
        hoverformat: ".4f",
        exponentformat: "power",
      },
      // Checkpoints are drawn on the x-axis, independent of the loss.
      yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
    },
  };
}

const hasNumber = ({ y }) => y.some((value) => value !== null);

/** A tick on the step axis per checkpoint on disk; checkpoints on request are crosses. */
function checkpointTraces(marks, view) {
  const all = marksOf("checkpoint", marks, view).map((mark) => ({ ...mark, y: 0.02 }));
  const requested = all.filter(({ reason }) => reason === "button");
  const others = all.filter(({ reason }) => reason !== "button");
  const marker = (symbol) => ({ symbol, size: 14, line: { color: color(2), width: 3 } });
  return [
    markers(CHECKPOINT, others, view, { yaxis: "y2", marker: marker("line-ns") }),
    markers(`${CHECKPOINT} on request`, requested, view, { yaxis: "y2", marker: marker("cross-thin") }),
  ];
}

function marksOf(kind, marks, view) {
  return marks
    .filter((mark) => mark.kind === kind)
    .map((mark) => ({ ...mark, x: view.axis === "step" ? mark.step : mark.active_s }))
    .filter((mark) => Number.isFinite(mark.x))
    .sort((a, b) => a.x - b.x);
}

/** A trace of marks, each with its place and its words. */
function markers(name, shown, view, style) {
  return scatter(name, { x: shown.map(({ x }) => x), y: shown.map(({ y }) => y) }, view, {
    mode: "markers",
    cliponaxis: false,
    text: shown.map(({ text }) => text),
    customdata: shown.map(({ step }) => step),
    hovertemplate: "%{text}<extra></extra>",
    ...style,
  });
}

const MARKS = {
  command: { name: "command", symbol: "triangle-right", colour: 3, size: 10 },
  warning: { name: "warning", symbol: "triangle-up", colour: 4, size: 11 },
};

/** One trace per kind of mark; each mark is placed on the curve at its step. */
function markTraces(marks, curve, view) {
  return Object.entries(MARKS).map(([kind, { name, symbol, colour, size }]) => {
    const shownMarks = marksOf(kind, marks, view)
      .map((mark) => ({ ...mark, y: valueAt(curve, mark.x) }))
      .filter((mark) => mark.y !== null);
    const outline = { color: chartColors().text, width: 1 };
    return markers(name, shownMarks, view, { marker: { symbol, size, color: color(colour), line: outline } });
  });
}

/** A validation metric, the chosen one or the main one, with its reference lines. */
export function metricFigure(traces, fine, view, chosen, references = []) {
  const names = metricNames(traces);
  const name = names.includes(chosen) ? chosen : names[0];
  if (name === undefined) return { data: [], layout: {} };
  const trace = refine(traces.get(`metric:${name}`), fine[`metric:${name}`]);
  const label = metricLabel(name);
  const isShare = SHARES.has(name);
  const lines = references
    .filter(({ metric }) => metric === name)
    .map((reference, index) => referenceLine(reference, trace, view, isShare, index));
  return {
    title: `Validation ${label}`,
    end: endOf(view),
    data: [scatter(label, trace, view, evaluations(1)), ...lines],
    layout: {
      showlegend: lines.length > 0,
      hovermode: "closest",
      xaxis: axisOf(view, traces.get("loss")),
      yaxis: {
        title: { text: name === "accuracy" ? "share predicted right" : label },
        tickformat: isShare ? ",.2~%" : null,
        hoverformat: isShare ? ".2%" : ".3f",
        // Around a single point Plotly's range would extend below 0% and above 100%.
        ...(isShare ? { autorangeoptions: { clipmin: 0, clipmax: 1.01 } } : {}),
      },
    },
  };
}

/** A horizontal line across the chart, with its value in the legend. */
function referenceLine({ label, value }, trace, view, isShare, index) {
  const end = Math.max(view.end, trace.x.at(-1) ?? 0);
  const shown = isShare ? `${(100 * value).toFixed(1)}%` : number(value);
  return scatter(`${label}: ${shown}`, { x: [0, end], y: [value, value] }, view, {
    line: { color: color(index + 2), width: 1.4, dash: "dash" },
    hoverinfo: "name+y",
  });
}

/** The names of the available metrics, the main one first. */
export function metricNames(traces) {
  const names = traces.named("metric:").map((name) => name.slice("metric:".length));
  const preference = (name) =>
    PREFERRED_METRICS.includes(name) ? PREFERRED_METRICS.indexOf(name) : PREFERRED_METRICS.length;
  return names.sort((a, b) => preference(a) - preference(b));
}

/**
 * A per-step value, as described by an entry of the summary's `charts`; if it has a limit (gradient
 * clipping), also the clipped value. `head`: the run's current values; in the throughput chart, periods in
 * which other programs used the processor are grey.
 */
export function stepFigure(traces, fine, view, chart, head) {
  const trace = refine(traces.get(chart.column), fine[chart.column]);
  // A line needs two points: before an early NaN a single point would show nothing.
  if (trace.x.length === 1 && head && isLossNaN(head)) return { data: [], layout: {} };
  const mode = trace.x.length === 1 ? "markers" : "lines";
  const style = { mode, line: { ...line(chart.color), dash: "solid", width: 1.6 } };
  const yaxis = { rangemode: "tozero", hoverformat: chart.hover_format };
  if (chart.tick_format) yaxis.tickformat = chart.tick_format;
  if (chart.axis_title) yaxis.title = { text: chart.axis_title };
  const shapes = chart.column === "throughput" ? (head?.contended ?? []).map((span) => band(span, view)) : [];
  const layout = { xaxis: axisOf(view, trace), yaxis, shapes };
  if (typeof chart.limit !== "number" || trace.x.length === 0) {
    return { data: [scatter(chart.name, trace, view, style)], end: endOf(view), layout };
  }
  const clipped = trace.y.map((value) => (value === null ? null : Math.min(value, chart.limit)));
  const cut = { x: trace.x, y: clipped };
  return {
    data: [
      scatter(`${chart.name}, as computed`, trace, view, { ...style, opacity: 0.45 }),
      scatter(`clipped to ${number(chart.limit)}`, cut, view, { mode, line: { ...style.line, width: 2.2 } }),
    ],
    end: endOf(view),
    layout: { ...layout, showlegend: true, shapes: [limitLine(chart.limit)] },
  };
}

function band(span, view) {
  const [from, to] = view.axis === "step" ? [span.from_step, span.to_step] : [span.from_s, span.to_s];
  const style = { fillcolor: chartColors().text, opacity: 0.1, line: { width: 0 }, layer: "below" };
  return {
    type: "rect",
    yref: "paper",
    x0: chartX(from, view),
    x1: chartX(to, view),
    y0: 0,
    y1: 1,
    ...style,
  };
}

function limitLine(y) {
  const style = { color: chartColors().text, width: 1, dash: "dash" };
  return { type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: style, layer: "below" };
}

function axisOf(view, trace) {
  if (view.axis === "step") return { title: { text: "optimizer step" }, rangemode: "tozero" };
  return { ...timeAxis(trace.x.at(-1) ?? 0), start: DAY_ZERO_MS };
}

/** The common end of all charts of a run: the run's length, or slightly ahead of the curves if unknown. */
const endOf = (view) => (view.end > 0 ? chartX(view.end, view) : 0);

const chartX = (x, view) => (view.axis === "step" ? x : DAY_ZERO_MS + x * 1000);

/** Converts an x value of the chart to steps or seconds. */
export function placeFromChart(x, view) {
  return view.axis === "step" ? x : (x - DAY_ZERO_MS) / 1000;
}

function evaluations(index) {
  return {
    mode: "lines+markers",
    cliponaxis: false,
    line: { ...line(index), dash: "dot" },
    marker: { color: color(index), size: 7, symbol: "circle" },
  };
}

function scatter(name, trace, view, style) {
  const x = view.axis === "step" ? trace.x : trace.x.map((seconds) => DAY_ZERO_MS + seconds * 1000);
  return { type: "scatter", mode: "lines", name, x, y: trace.y, connectgaps: false, ...style };
}

// The text of an empty chart: when its first point is expected, or why it has no points.

const COARSE_FROM_S = 60;
const COARSE_S = 5;
const SOON_S = 3;
const ENDED_EARLY = "The run ended before its first step.";

/**
 * @typedef {object} Head
 * @property {string} state
 * @property {string | null} [doing]
 * @property {number} step
 * @property {number | null} num_steps
 * @property {number | null} [loss]
 * @property {number | null} global_batch
 * @property {number | null} num_train
 * @property {{ step_time_s: number } | null} pace
 * @property {Record<string, number | null>} metrics
 */

/**
 * The next step at which a run evaluates, and its description; null if unknown.
 * @param {Head} head
 * @param {number | null} everySteps the configured interval; null: at the end of every epoch
 * @returns {{ step: number, text: string } | null}
 */
export function nextEvaluation(
  { step, num_steps: last, global_batch: batch, num_train: numTrain },
  everySteps,
) {
  const stepsPerEpoch = batch && numTrain ? Math.ceil(numTrain / batch) : null;
  const every = everySteps ?? stepsPerEpoch;
  if (!every) return null;
  const nth = Math.floor(step / every) + 1;
  const due = nth * every;
  // A run always evaluates at its end.
  if (last && last < due) return { step: last, text: `at the end of the run, at step ${count(last)}` };
  return { step: due, text: everySteps === null ? `after epoch ${count(nth)}` : `at step ${count(due)}` };
}

/**
 * A text with the time of the first evaluation, or the reason why none is expected.
 * @param {Head} head
 * @param {number | null} everySteps
 */
export function firstEvaluationText(head, everySteps) {
  const [name] = Object.keys(head.metrics ?? {});
  if (name !== undefined) {
    return `Nothing to draw: the validation ${metricLabel(name)} is NaN (not a number).`;
  }
  if (!LIVE_STATES.has(head.state)) return "The run ended before its first evaluation.";
  if (head.doing === "evaluating" && head.state === "running") return "The first evaluation is under way.";
  const next = nextEvaluation(head, everySteps);
  if (next === null) {
    return everySteps === null
      ? "First evaluation after epoch 1."
      : `First evaluation at step ${count(everySteps)}.`;
  }
  const when =
    head.state === "running" && head.pace ? waitText((next.step - head.step) * head.pace.step_time_s) : "";
  return `First evaluation ${next.text}${when}.`;
}

/**
 * ", in about 1 min 20 s". Rounded to five seconds from one minute on, so that it does not flicker.
 * @param {number} seconds
 */
function waitText(seconds) {
  if (seconds < SOON_S) return ", in a moment";
  const rounded = seconds < COARSE_FROM_S ? seconds : Math.round(seconds / COARSE_S) * COARSE_S;
  return `, in about ${duration(rounded)}`;
}

/**
 * The text of an empty training loss chart.
 * @param {Head} head
 */
export function lossText(head) {
  if (isLossNaN(head)) return "Nothing to draw: the loss is NaN (not a number) from the first step on.";
  return LIVE_STATES.has(head.state) ? "The training loss appears with the first steps." : ENDED_EARLY;
}

/**
 * The text of an empty per-step chart.
 * @param {Head} head
 * @param {{ name: string, empty: string }} chart an entry of the summary's `charts`
 */
export function stepText(head, { name, empty }) {
  if (isLossNaN(head)) return `Nothing to draw: the loss is NaN (not a number), and the ${name} with it.`;
  if (LIVE_STATES.has(head.state)) return empty;
  return head.step > 0 ? `This run has not recorded its ${name}.` : ENDED_EARLY;
}
