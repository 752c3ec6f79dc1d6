// The chart of several runs: one curve each, in the colour and dash pattern of its column in the table.

import { DAY_ZERO_MS, timeAxis } from "../charts/style.js";
import { SHARES, metricLabel, capital } from "../shared/format.js";
import { chartColors, line } from "../shared/theme.js";
import { samplesAt } from "./scaling.js";

/**
 * The position of a step on an axis; null if unknown.
 * @param {import("./scaling.js").Measured} head
 * @param {number} step
 * @param {string} axis
 */
export function placeOf(head, step, axis) {
  const samples = samplesAt(head, step);
  if (axis === "samples" || samples === null) return samples;
  return samples / (head.num_train ?? 1);
}

/**
 * The query parameters that make the server smooth a run's curves over the same window as those of other
 * runs.
 * @param {{ axis: string, smoothing: number }} view `smoothing` is in the unit of the axis; for epochs in
 * samples
 */
export function chartQuery({ axis, smoothing }) {
  const over = axis === "epochs" ? "samples" : axis;
  return { axis: axis === "time" ? "time" : "step", smoothing, smooth_over: over, smooth_throughput: true };
}

/**
 * The length of a number of steps in the unit of an axis (for epochs in samples), rounded down to 1, 2 or 5
 * times a power of ten.
 * @param {string} axis
 * @param {number} steps
 * @param {any[]} heads current values of the runs; runs whose steps are still unknown are ignored
 */
export function spanOn(axis, steps, heads) {
  if (axis === "step" || steps === 0) return steps;
  const ofStep = (head) => (axis === "time" ? head?.pace?.step_time_s : head?.global_batch) ?? 0;
  const span = steps * Math.max(0, ...heads.map(ofStep));
  if (!(span > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(span));
  return ([5, 2].find((each) => each * power <= span) ?? 1) * power;
}

/** The horizontal axes and their titles. */
export const AXES = {
  step: "optimizer step",
  samples: "samples trained on, all ranks together",
  epochs: "epochs",
  time: "time since the start",
};

/**
 * The x values on an axis. Samples and epochs are computed from steps; null if the run's batch size is
 * unknown.
 */
export function placesOn(axis, x, head) {
  if (axis === "time") return x.map((seconds) => DAY_ZERO_MS + seconds * 1000);
  return axis === "step" ? x : x.map((step) => head && placeOf(head, step, axis));
}

/** The curves that can be drawn: training loss, throughput, and the evaluation metrics. */
export function curveNames(allTraces) {
  const metrics = new Set(["loss", "throughput"]);
  for (const traces of allTraces) {
    for (const name of traces.byName.keys()) {
      if (name === "validation_loss" || name.startsWith("metric:")) metrics.add(name);
    }
  }
  return [...metrics];
}

/** Metrics measured at each step, and their labels. */
const OF_STEPS = {
  loss: "training loss",
  throughput: "throughput",
  learning_rate: "learning rate",
  grad_norm: "gradient norm",
};

/** The label of a curve. */
export function curveText(name) {
  if (name in OF_STEPS) return OF_STEPS[name];
  return name === "validation_loss"
    ? "validation loss"
    : `validation ${metricLabel(name.slice("metric:".length))}`;
}

/** The Plotly figure of one curve of all runs. */
export function compareFigure(runs, traces, { axis, smoothing, isLogarithmic }, curve) {
  const canBeSmooth = curve === "loss" || curve === "throughput";
  const trace = canBeSmooth && smoothing > 0 ? `${curve}_smooth` : curve;
  const lines = runs.map((run, index) => {
    const { x, y } = traces.get(run.run_id)?.get(trace) ?? { x: [], y: [] };
    return { name: run.name, index, x: placesOn(axis, x, traces.get(run.run_id)?.head), y };
  });
  return curveFigure(lines, { axis, isLogarithmic }, curve);
}

/**
 * The Plotly figure of one curve of several runs; `index` selects the colour and the dash pattern of a line.
 * @param {{ name: string, index: number, x: any[], y: (number | null)[] }[]} lines
 */
export function curveFigure(lines, { axis, isLogarithmic }, curve) {
  const isOfSteps = curve in OF_STEPS;
  /** @type {any[]} */
  const data = lines.map(({ name, index, x, y }) => ({
    type: "scatter",
    mode: isOfSteps ? "lines" : "lines+markers",
    // Plotly interprets tags in a name as markup.
    name: name.replaceAll("<", "‹"),
    x,
    y,
    line: line(index),
    marker: { size: 6 },
    connectgaps: false,
  }));
  const text = curveText(curve);
  const axisText = curve === "throughput" ? "samples per second" : text;
  const isShare = SHARES.has(curve.slice("metric:".length));
  return {
    title: capital(text),
    data,
    layout: {
      showlegend: false,
      hovermode: "closest",
      xaxis: axis === "time" ? timeAxis(longest(data)) : { title: { text: AXES[axis] }, rangemode: "tozero" },
      yaxis: {
        title: { text: axisText },
        type: isLogarithmic ? "log" : "linear",
        exponentformat: "power",
        rangemode: curve === "throughput" && !isLogarithmic ? "tozero" : "normal",
        tickformat: isShare ? ",.2~%" : null,
        hoverformat: hoverFormat(curve, isShare),
      },
    },
  };
}

function hoverFormat(curve, isShare) {
  if (curve === "throughput") return ",.0f";
  return isShare ? ".2%" : ".4f";
}

/** The end of the longest of some curves over time, in seconds. */
function longest(data) {
  const ends = data.map((trace) => trace.x.at(-1) ?? DAY_ZERO_MS);
  return (Math.max(DAY_ZERO_MS, ...ends) - DAY_ZERO_MS) / 1000;
}

/** A predicted curve, as a trace below the measured ones. */
export function guessLine(name, { x, y }) {
  return {
    type: "scatter",
    mode: "lines",
    name,
    x,
    y,
    line: { color: chartColors().faint, width: 5, dash: "dot", shape: "spline" },
    opacity: 0.6,
  };
}

/** The layout of vertical lines with labels at the marked positions. */
export function marked(marks) {
  const { faint, text, hover } = chartColors();
  return {
    shapes: marks.map(({ x }) => ({
      type: "line",
      xref: "x",
      yref: "paper",
      x0: x,
      x1: x,
      y0: 0,
      y1: 1,
      line: { color: faint, width: 1.5, dash: "dot" },
    })),
    annotations: marks.map(({ x, words }, index) => ({
      x,
      y: 0.98 - 0.12 * (index % 3),
      xref: "x",
      yref: "paper",
      xanchor: "left",
      xshift: 6,
      showarrow: false,
      align: "left",
      bgcolor: hover,
      text: words.replaceAll("<", "‹"),
      font: { color: text },
    })),
  };
}
