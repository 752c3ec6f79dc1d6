// Layout and configuration shared by all charts: colours, axes, toolbar.

import { count } from "../shared/format.js";
import { chartColors } from "../shared/theme.js";

export const CONFIG = {
  // No logo. With `false`, Plotly sees a change on each drawing and replaces the toolbar, so that it loses
  // the focus.
  displaylogo: undefined,
  // Would upload the points to a third-party server.
  showSendToCloud: false,
  // Touch screens have no hover. The unit tests have no screen.
  displayModeBar: globalThis.matchMedia?.("(pointer: coarse)").matches ? false : "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
  responsive: false,
  scrollZoom: false,
  // The chart handles double clicks itself (see `unzoom`).
  doubleClick: false,
};

// The toolbar has a separate strip below the axis title, so that a long title cannot overlap it.
const TOOLS_STRIP = CONFIG.displayModeBar ? 26 : 0;

// Date axes count from here: Plotly would read a four-digit number as a year.
export const DAY_ZERO_MS = Date.UTC(2000, 0, 1);

/** The Plotly axis of the time since the start of a run; ticks fall on full minutes and hours. */
export function timeAxis(longestSeconds) {
  const days = longestSeconds < 86400 ? ["%-H:%M", "hours:minutes"] : ["day %-j, %-H:%M", "time"];
  const [tickformat, unit] = longestSeconds < 3600 ? ["%-M:%S", "minutes:seconds"] : days;
  return { type: "date", tickformat, hoverformat: "%-H:%M:%S", title: { text: `${unit} since the start` } };
}

/** The font of the page. */
function typeface() {
  return getComputedStyle(document.documentElement).getPropertyValue("--ddp-sans");
}

/** The text size in charts, in pixels: follows the page's text size, and is larger on a projector. */
export function textSize() {
  const page = getComputedStyle(document.documentElement);
  return Number(page.getPropertyValue("--ddp-drawn-text")) * parseFloat(page.fontSize);
}

/**
 * The base layout that each figure's own layout is merged into.
 * @returns {Record<string, any>}
 */
export function baseLayout(dataRevision, yRevision, zoomRevision) {
  const colors = chartColors();
  const size = textSize();
  const spacing = size / 12;
  const axis = {
    gridcolor: colors.grid,
    linecolor: colors.axis,
    zeroline: false,
    color: colors.faint,
    title: { font: { size, color: colors.faint }, standoff: 8 },
    nticks: 6,
    separatethousands: true,
    minexponent: 5, // thousands separators below a million, as elsewhere on the page
  };
  return {
    autosize: true,
    // Constant, so that zoom, pan and legend survive updates.
    uirevision: "ddp",
    datarevision: dataRevision,
    // Half of the last tick label extends beyond the axis; without this margin Plotly hides it.
    margin: { l: 58 * spacing, r: 20 * spacing, t: 30 * spacing, b: 42 * spacing + TOOLS_STRIP },
    paper_bgcolor: colors.paper,
    plot_bgcolor: colors.paper,
    font: { family: typeface(), size, color: colors.text },
    hoverlabel: { bgcolor: colors.hover, bordercolor: colors.axis, font: { color: colors.text } },
    hovermode: "x unified",
    // A finger on a chart must scroll the page.
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
    // Long numbers move the title instead of overlapping it.
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

/** The smoothing windows of a run's curves, in steps. */
export const SMOOTHINGS = [0, 10, 30, 100, 1000];
// The corresponding windows of a time axis, in seconds.
const SMOOTHINGS_S = [0, 1, 3, 10, 100];

/**
 * The smoothing window as a label and as query parameters for the server.
 * @param {{ axis: string, smoothing: number }} view `smoothing` is one of `SMOOTHINGS`
 */
export function smoothingOf({ axis, smoothing }) {
  if (axis !== "time") {
    return { query: { smoothing, smooth_over: "step" }, text: `${count(smoothing)} steps` };
  }
  const seconds = SMOOTHINGS_S[SMOOTHINGS.indexOf(smoothing)] ?? 1;
  return { query: { smoothing: seconds, smooth_over: "time" }, text: `${count(seconds)} s` };
}
