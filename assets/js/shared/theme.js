// Light or dark theme, as Gradio marks it on the body, and the matching colours.

const listeners = new Set();

/** True if the dark theme is active. */
export function isDark() {
  return document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
}

let wasDark = false;

/** Calls back when the theme changes; returns a function that unsubscribes. */
export function onThemeChange(callback) {
  if (listeners.size === 0) wasDark = isDark();
  watch();
  listeners.add(callback);
  return () => listeners.delete(callback);
}

/** @type {MutationObserver | null} */
let watcher = null;

// Not at import: modules that only compute are tested without a document.
function watch() {
  if (watcher !== null) return;
  watcher = new MutationObserver(() => {
    if (isDark() === wasDark) return;
    wasDark = isDark();
    for (const callback of listeners) callback();
  });
  for (const element of [document.documentElement, document.body]) {
    watcher.observe(element, { attributes: true, attributeFilter: ["class"] });
  }
}

// The palette by Okabe and Ito, which is safe for colour-blind readers. The order starts with the pairs that
// differ most. Its yellow is invisible on white, its black on dark.
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333"];
const DARK = ["#56B4E9", "#E69F00", "#2BC49A", "#E59AC4", "#F0E442", "#6C9CF0", "#DDDDDD"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

/** The colour of the n-th trace. */
export function color(index) {
  const palette = isDark() ? DARK : LIGHT;
  return palette[index % palette.length];
}

/**
 * The line style of the n-th of several traces: a dash pattern as well, so that colour is never the only
 * difference.
 */
export function line(index) {
  return { color: color(index), dash: DASHES[index % DASHES.length], width: 2 };
}

/** Plotly colours that match the page. */
export function chartColors() {
  return isDark()
    ? {
        text: "#d7dbe2",
        grid: "#31363f",
        axis: "#4a515d",
        paper: "rgba(0,0,0,0)",
        hover: "#20242b",
        faint: "#8f98a6",
      }
    : {
        text: "#39414d",
        grid: "#e8ebef",
        axis: "#c3c9d2",
        paper: "rgba(0,0,0,0)",
        hover: "#ffffff",
        faint: "#6a7380",
      };
}
