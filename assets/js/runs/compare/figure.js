// The chart of several runs: one curve each, in the colour and dash of the run's column below.

import { timeTicks } from "../../charts/style.js";
import { metricLabel, SHARES } from "../../shared/format.js";
import { line } from "../../shared/theme.js";

// A date axis counts from here: a number of four digits would be taken for a year.
const DAY_ZERO_MS = Date.UTC(2000, 0, 1);

/** What can be drawn of runs: the training loss, the pace, and what their evaluations measure. */
export function curveNames(held) {
  const found = new Set(["loss", "throughput"]);
  for (const traces of held) {
    for (const name of traces.held.keys()) {
      if (name === "validation_loss" || name.startsWith("metric:")) found.add(name);
    }
  }
  return [...found];
}

/** What a curve is called. */
export function curveWords(name) {
  if (name === "loss") return "training loss";
  if (name === "throughput") return "throughput (samples per second)";
  return name === "validation_loss"
    ? "validation loss"
    : `validation ${metricLabel(name.slice("metric:".length))}`;
}

/** The figure of one kind of curve of all runs. */
export function compareFigure(runs, traces, { curve, axis, smoothing }) {
  const isSmooth = curve === "loss" && smoothing > 1;
  const data = runs.map((run, index) => {
    const { x, y } = traces.get(run.run_id)?.get(isSmooth ? "loss_smooth" : curve) ?? { x: [], y: [] };
    const isMarked = curve !== "loss" && curve !== "throughput";
    return {
      type: "scatter",
      mode: isMarked ? "lines+markers" : "lines",
      // Plotly takes tags in a name for its own.
      name: run.name.replaceAll("<", "‹"),
      x: axis === "step" ? x : x.map((seconds) => DAY_ZERO_MS + seconds * 1000),
      y,
      line: line(index),
      marker: { size: 6 },
      connectgaps: false,
    };
  });
  const words = curveWords(curve);
  const isShare = SHARES.has(curve.slice("metric:".length));
  return {
    title: words[0].toUpperCase() + words.slice(1),
    data,
    layout: {
      showlegend: false,
      hovermode: "closest",
      xaxis: axis === "step" ? { title: { text: "optimizer step" }, rangemode: "tozero" } : timeAxis(data),
      yaxis: {
        title: { text: words },
        rangemode: curve === "throughput" ? "tozero" : "normal",
        tickformat: isShare ? ",.2~%" : null,
        hoverformat: isShare ? ".2%" : ".4f",
      },
    },
  };
}

function timeAxis(data) {
  const longest_s =
    (Math.max(DAY_ZERO_MS, ...data.map((trace) => trace.x.at(-1) ?? DAY_ZERO_MS)) - DAY_ZERO_MS) / 1000;
  const [tickformat, unit] = timeTicks(longest_s);
  return { type: "date", tickformat, hoverformat: "%-H:%M:%S", title: { text: `${unit} since the start` } };
}
