// The chart of several runs: one curve each, in the colour and dash pattern of its column in the table.

import { DAY_ZERO_MS, timeTicks } from "../../charts/style.js";
import { metricLabel, SHARES } from "../../shared/format.js";
import { line } from "../../shared/theme.js";
import { placeOf } from "./scaling.js";

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
export function curveNames(held) {
  const found = new Set(["loss", "throughput"]);
  for (const traces of held) {
    for (const name of traces.held.keys()) {
      if (name === "validation_loss" || name.startsWith("metric:")) found.add(name);
    }
  }
  return [...found];
}

/** Metrics measured at each step, and their labels. */
const OF_STEPS = {
  loss: "training loss",
  throughput: "throughput",
  learning_rate: "learning rate",
  grad_norm: "gradient norm",
};

/** The label of a curve. */
export function curveWords(name) {
  if (name in OF_STEPS) return OF_STEPS[name];
  return name === "validation_loss"
    ? "validation loss"
    : `validation ${metricLabel(name.slice("metric:".length))}`;
}

/** The Plotly figure of one curve of all runs. */
export function compareFigure(runs, traces, { axis, smoothing, isLogarithmic }, curve) {
  const isOfSteps = curve in OF_STEPS;
  const canBeSmooth = curve === "loss" || curve === "throughput";
  const trace = canBeSmooth && smoothing > 0 ? `${curve}_smooth` : curve;
  const data = runs.map((run, index) => {
    const { x, y } = traces.get(run.run_id)?.get(trace) ?? { x: [], y: [] };
    return {
      type: "scatter",
      mode: isOfSteps ? "lines" : "lines+markers",
      // Plotly interprets tags in a name as markup.
      name: run.name.replaceAll("<", "‹"),
      x: placesOn(axis, x, traces.get(run.run_id)?.head),
      y,
      line: line(index),
      marker: { size: 6 },
      connectgaps: false,
    };
  });
  const words = curveWords(curve);
  const axisWords = curve === "throughput" ? "samples per second" : words;
  const isShare = SHARES.has(curve.slice("metric:".length));
  return {
    title: words[0].toUpperCase() + words.slice(1),
    data,
    layout: {
      showlegend: false,
      hovermode: "closest",
      xaxis: axis === "time" ? timeAxis(data) : { title: { text: AXES[axis] }, rangemode: "tozero" },
      yaxis: {
        title: { text: axisWords },
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

function timeAxis(data) {
  const longest_s =
    (Math.max(DAY_ZERO_MS, ...data.map((trace) => trace.x.at(-1) ?? DAY_ZERO_MS)) - DAY_ZERO_MS) / 1000;
  const [tickformat, unit] = timeTicks(longest_s);
  return { type: "date", tickformat, hoverformat: "%-H:%M:%S", title: { text: `${unit} since the start` } };
}
