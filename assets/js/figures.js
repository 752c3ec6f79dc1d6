// What each chart of a run shows, from the traces that are held.

import { byteUnit, bytes, metricLabel, SHARES } from "./format.js";
import { chartColors, color, line } from "./theme.js";
import { refine } from "./traces.js";

const STEP_AXIS = { title: { text: "optimizer step" }, rangemode: "tozero" };
const PREFERRED_METRICS = ["perplexity", "rmse", "accuracy"];

/** Training and validation loss, with a mark for every checkpoint that is on disk. */
export function lossFigure(traces, fine, checkpoints, task) {
  const training = refine(traces.get("loss"), fine.loss);
  const validation = refine(traces.get("validation_loss"), fine.validation_loss);
  const oldestFirst = [...checkpoints].sort((a, b) => a.step - b.step);
  const data = [
    scatter("training", training, { line: { ...line(0), width: 1.6 } }),
    scatter("validation", validation, evaluations(1)),
    {
      ...scatter("checkpoint", { x: oldestFirst.map((item) => item.step), y: oldestFirst.map(() => 0.02) }, {}),
      yaxis: "y2",
      mode: "markers",
      cliponaxis: false,
      marker: { symbol: "diamond", size: 8, color: color(2), line: { color: chartColors().text, width: 1 } },
      text: oldestFirst.map((item) => `step ${item.step}, ${bytes(item.size_bytes)}`),
      hovertemplate: "%{text}",
    },
  ].filter((trace) => trace.x.length > 0);
  const layout = {
    showlegend: data.length > 1,
    xaxis: STEP_AXIS,
    yaxis: { title: { text: task === "tabular_regression" ? "loss (squared error)" : "loss (cross-entropy)" }, hoverformat: ".4f" },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  };
  return { data, layout };
}

/** The main metric over the validation split. */
export function metricFigure(traces, fine) {
  const names = traces.named("metric:").map((name) => name.slice("metric:".length));
  const name = PREFERRED_METRICS.find((preferred) => names.includes(preferred)) ?? names[0];
  if (name === undefined) return { data: [], layout: {} };
  const trace = refine(traces.get(`metric:${name}`), fine[`metric:${name}`]);
  const label = metricLabel(name);
  const isShare = SHARES.has(name);
  return {
    title: `Validation ${label}`,
    data: [scatter(label, trace, evaluations(1))],
    layout: {
      hovermode: "closest",
      xaxis: STEP_AXIS,
      yaxis: {
        title: { text: isShare ? "share predicted right" : label },
        tickformat: isShare ? ",.2~%" : null,
        hoverformat: isShare ? ".2%" : ".3f",
      },
    },
  };
}

/** Samples a second over all ranks together. */
export function throughputFigure(traces, fine, sampleUnit) {
  return {
    data: [scatter("throughput", refine(traces.get("throughput"), fine.throughput), { line: { ...line(2), dash: "solid", width: 1.6 } })],
    layout: {
      xaxis: STEP_AXIS,
      yaxis: { title: { text: `${sampleUnit} per second` }, rangemode: "tozero", hoverformat: ",.0f" },
    },
  };
}

/** How busy each rank's device is. */
export function utilizationFigure(traces, rankLabel) {
  const data = perRank(traces, "utilization:", rankLabel, (y) => y);
  const highest = data.reduce((top, trace) => Math.max(top, ...trace.y), 100);
  const layout = {
    showlegend: data.length > 1,
    xaxis: timeAxis(data),
    yaxis: { title: { text: "percent" }, range: [0, highest * 1.04], hoverformat: ".0f" },
  };
  return { data, layout };
}

/** How much memory each rank uses. */
export function memoryFigure(traces, rankLabel) {
  const raw = traces.named("memory:").map((name) => traces.get(name).y);
  const [unit, unitName] = byteUnit(raw.reduce((top, y) => Math.max(top, ...y), 0));
  const data = perRank(traces, "memory:", rankLabel, (y) => y.map((value) => (value === null ? null : value / unit)));
  const layout = {
    showlegend: data.length > 1,
    xaxis: timeAxis(data),
    yaxis: { title: { text: unitName }, rangemode: "tozero", hoverformat: ".3~g" },
  };
  return { data, layout, revision: unitName };
}

function perRank(traces, prefix, rankLabel, convert) {
  return traces.named(prefix).map((name, index) => {
    const { x, y } = traces.get(name);
    const trace = { x: x.map((seconds) => seconds * 1000), y: convert(y) };
    return scatter(rankLabel(Number(name.slice(prefix.length))), trace, { line: line(index) });
  });
}

// Seconds since the start, as a date axis in UTC counts them: the ticks fall on whole minutes and hours.
function timeAxis(data) {
  const longest = data.reduce((end, trace) => Math.max(end, trace.x.at(-1) ?? 0), 0) / 1000;
  const [tickformat, unit] =
    longest < 3600 ? ["%-M:%S", "minutes:seconds"] : longest < 86400 ? ["%-H:%M", "hours:minutes"] : ["day %-j, %-H:%M", "time"];
  return { type: "date", tickformat, hoverformat: "%-H:%M:%S", title: { text: `${unit} since the start` } };
}

function evaluations(index) {
  return {
    mode: "lines+markers",
    line: { ...line(index), dash: "dot" },
    marker: { color: color(index), size: 7, symbol: "circle" },
  };
}

function scatter(name, trace, look) {
  return { type: "scatter", mode: "lines", name, x: trace.x, y: trace.y, connectgaps: false, ...look };
}
