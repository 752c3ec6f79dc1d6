// One chart: a Plotly plot that keeps the user's zoom while points come in, and draws only what can be seen.

import { el, setText, show } from "./dom.js";
import { chartColors } from "./theme.js";
import { address } from "./net.js";

const REFINE_AFTER_MS = 200;
const CONFIG = {
  displaylogo: false,
  displayModeBar: "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  responsive: false,
  scrollZoom: false,
};

let loading = null;

/** Resolves to Plotly: our own reference, whatever another script makes of `window.Plotly` later. */
export function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    if (window.Plotly) {
      resolve(window.Plotly);
      return;
    }
    const script =
      document.querySelector('script[src*="live/plotly.min.js"]') ??
      document.head.appendChild(el("script", { src: address("live/plotly.min.js") }));
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new Error("plotly.min.js could not be loaded")));
  });
  return loading;
}

export class Chart {
  /**
   * `figure()` returns {data, layout, title?, revision?} for what is held now; `fetchRange(low, high)`,
   * where given, resolves to the finer traces of a range the user zoomed into; `everyMs` is the least
   * time between two drawings.
   */
  constructor({ name, title, empty, figure, fetchRange = null, everyMs = 0, onVisible }) {
    this.figure = figure;
    this.fetchRange = fetchRange;
    this.isDirty = true;
    this.isVisible = false;
    this.isDrawn = false;
    this.everyMs = everyMs;
    this.drawnAt = -Infinity;
    this.fine = {};
    this.revision = 0;
    this.title = el("h3", { id: `ddp-chart-${name}` }, title);
    this.plot = el("div", { class: "ddp-plot" });
    this.empty = el("p", { class: "ddp-plot-empty" }, empty);
    this.element = el(
      "figure",
      { class: "ddp-card ddp-chart", "data-chart": name, "aria-labelledby": `ddp-chart-${name}` },
      this.title,
      el("div", { class: "ddp-plot-box" }, this.plot, this.empty),
    );
    this.sight = new IntersectionObserver(
      (entries) => {
        this.isVisible = entries.at(-1).isIntersecting;
        if (this.isVisible && this.isDirty) onVisible();
      },
      { rootMargin: "150px" },
    );
    this.sight.observe(this.element);
    this.size = new ResizeObserver(() => {
      if (this.isDrawn && this.plot.offsetWidth > 0) this.plotly.Plots.resize(this.plot);
    });
    this.size.observe(this.plot);
  }

  /** Whether drawing now would show something new: in sight, or for the first time; not under a drag. */
  get isDue() {
    return this.isDirty && (this.isVisible || !this.isDrawn) && !this.plot._dragging;
  }

  /** Milliseconds until it may be drawn again. */
  get rest() {
    return Math.max(0, this.drawnAt + this.everyMs - performance.now());
  }

  /** Draws what is held now; resolves when Plotly has. */
  async draw(plotly) {
    this.plotly = plotly;
    this.isDirty = false;
    this.drawnAt = performance.now();
    const { data, layout, title, revision = "" } = this.figure(this.fine);
    if (title) setText(this.title, title);
    const hasPoints = data.some((trace) => trace.x.length > 0);
    show(this.empty, !hasPoints);
    if (!hasPoints && !this.isDrawn) return;
    this.revision += 1;
    await plotly.react(this.plot, data, merge(baseLayout(this.revision, revision), layout), CONFIG);
    if (!this.isDrawn) {
      this.isDrawn = true;
      this.plot.on("plotly_relayout", (change) => this.zoomed(change));
    }
  }

  /** The user zoomed: asks for the finer points of what is shown now. */
  zoomed(change) {
    if (!this.fetchRange || !Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
    clearTimeout(this.refining);
    const axis = this.plot.layout.xaxis;
    if (change["xaxis.autorange"] || !axis?.range) {
      this.fine = {};
      this.redraw();
      return;
    }
    const [low, high] = axis.range.map(Number);
    this.refining = setTimeout(async () => {
      const fine = await this.fetchRange(low, high);
      if (fine) {
        this.fine = fine;
        this.redraw();
      }
    }, REFINE_AFTER_MS);
  }

  redraw() {
    this.isDirty = true;
    if (this.plotly) this.draw(this.plotly);
  }

  /** The run's points were replaced: what a zoom brought in is asked for again. */
  refetchFine() {
    this.fine = {};
    const axis = this.isDrawn ? this.plot.layout.xaxis : null;
    if (axis && axis.autorange === false) this.zoomed({ "xaxis.range": axis.range });
  }

  close() {
    clearTimeout(this.refining);
    this.sight.disconnect();
    this.size.disconnect();
    if (this.isDrawn) this.plotly.purge(this.plot);
  }
}

function baseLayout(dataRevision, yRevision) {
  const colors = chartColors();
  const axis = {
    gridcolor: colors.grid,
    linecolor: colors.axis,
    zeroline: false,
    color: colors.faint,
    title: { font: { size: 12, color: colors.faint }, standoff: 8 },
    nticks: 6,
  };
  return {
    autosize: true,
    // The same word on every update: the user's zoom, pan and legend stay as they are.
    uirevision: "ddp",
    datarevision: dataRevision,
    margin: { l: 58, r: 14, t: 30, b: 42 },
    paper_bgcolor: colors.paper,
    plot_bgcolor: colors.paper,
    font: { family: "system-ui, -apple-system, 'Segoe UI', sans-serif", size: 12, color: colors.text },
    hoverlabel: { bgcolor: colors.hover, bordercolor: colors.axis, font: { color: colors.text } },
    hovermode: "x unified",
    // A finger on a chart scrolls the page.
    dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    modebar: { bgcolor: colors.paper, color: colors.faint, activecolor: colors.text },
    showlegend: false,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", bgcolor: colors.paper },
    xaxis: { ...axis, showgrid: false, showline: true },
    yaxis: { ...axis, uirevision: `ddp${yRevision}` },
  };
}

function merge(base, over) {
  const merged = { ...base };
  for (const [key, value] of Object.entries(over)) {
    const isPlain = value !== null && typeof value === "object" && !Array.isArray(value);
    merged[key] = isPlain ? merge(base[key] ?? {}, value) : value;
  }
  return merged;
}
