// What all charts have in common: colours, axes, the tools at their edge.

import { count } from "../shared/format.js";
import { chartColors } from "../shared/theme.js";

export const CONFIG = {
  // No logo. Of `false` Plotly believes that it has changed at each drawing, and replaces all tools: the focus is lost.
  displaylogo: undefined,
  // It would send the points to somebody else's server.
  showSendToCloud: false,
  // Nothing hovers over a screen that is touched.
  displayModeBar: window.matchMedia("(pointer: coarse)").matches ? false : "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
  responsive: false,
  scrollZoom: false,
  // Two clicks show the whole again; the chart does it itself.
  doubleClick: false,
};

// The tools have a strip of their own below the title of the axis, however long that is.
const TOOLS_STRIP = CONFIG.displayModeBar ? 26 : 0;

// A date axis counts from here: a number of four digits would be taken for a year.
export const DAY_ZERO_MS = Date.UTC(2000, 0, 1);

/** How Plotly writes the ticks of an axis of so many seconds, and in which unit: they fall on whole minutes and hours. */
export function timeTicks(longestSeconds) {
  if (longestSeconds < 3600) return ["%-M:%S", "minutes:seconds"];
  return longestSeconds < 86400 ? ["%-H:%M", "hours:minutes"] : ["day %-j, %-H:%M", "time"];
}

/** The typeface of the page. */
function typeface() {
  return getComputedStyle(document.documentElement).getPropertyValue("--ddp-sans");
}

/** What is written in a drawing, in pixels: grows with the page's text, more so on a projector. */
export function textSize() {
  const page = getComputedStyle(document.documentElement);
  return Number(page.getPropertyValue("--ddp-drawn-text")) * parseFloat(page.fontSize);
}

/**
 * The layout a figure's own is merged into.
 * @returns {Record<string, any>}
 */
export function baseLayout(dataRevision, yRevision, zoomRevision) {
  const colors = chartColors();
  const size = textSize();
  const room = size / 12;
  const axis = {
    gridcolor: colors.grid,
    linecolor: colors.axis,
    zeroline: false,
    color: colors.faint,
    title: { font: { size, color: colors.faint }, standoff: 8 },
    nticks: 6,
    separatethousands: true,
    minexponent: 5, // below a million the thousands are apart, as everywhere else
  };
  return {
    autosize: true,
    // The same word on every update: the user's zoom, pan and legend stay as they are.
    uirevision: "ddp",
    datarevision: dataRevision,
    // Half of the last tick's label stands beyond the end of the axis; it would be hidden if it did not fit.
    margin: { l: 58 * room, r: 20 * room, t: 30 * room, b: 42 * room + TOOLS_STRIP },
    paper_bgcolor: colors.paper,
    plot_bgcolor: colors.paper,
    font: { family: typeface(), size, color: colors.text },
    hoverlabel: { bgcolor: colors.hover, bordercolor: colors.axis, font: { color: colors.text } },
    hovermode: "x unified",
    // A finger on a chart scrolls the page.
    dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    modebar: { bgcolor: colors.paper, color: colors.faint, activecolor: colors.text },
    showlegend: false,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", bgcolor: colors.paper },
    xaxis: {
      ...axis,
      spikecolor: colors.faint,
      spikethickness: 1,
      showgrid: false,
      showline: true,
      uirevision: `zoom${zoomRevision}`,
    },
    // Long numbers push the title away instead of lying over it.
    yaxis: { ...axis, automargin: "left", uirevision: `zoom${zoomRevision} ${yRevision}` },
  };
}

export function merge(base, over) {
  const merged = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const isPlain = value !== null && typeof value === "object" && !Array.isArray(value);
    merged[key] = isPlain ? merge(base[key] ?? {}, value) : value;
  }
  return merged;
}

/** What a run's curves can be smoothed over, in steps. */
export const SMOOTHINGS = [0, 10, 30, 100, 1000];
// The same over an axis of seconds.
const SMOOTHINGS_S = [0, 1, 3, 10, 100];

/**
 * How much of its axis a curve is averaged over: in words, and as the server is asked for it.
 * @param {{ axis: string, smoothing: number }} look the smoothing as one of `SMOOTHINGS`
 */
export function smoothingOf({ axis, smoothing }) {
  if (axis !== "time") {
    return { query: { smoothing, smooth_over: "step" }, words: `${count(smoothing)} steps` };
  }
  const seconds = SMOOTHINGS_S[SMOOTHINGS.indexOf(smoothing)] ?? 1;
  return { query: { smoothing: seconds, smooth_over: "time" }, words: `${count(seconds)} s` };
}
