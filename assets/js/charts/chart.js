// A chart: a Plotly plot that keeps the user's zoom while points arrive, and draws only if visible; its controls
// and the samples of its lines.

import { afterPaint } from "../shared/browser.js";
import { showError } from "../shared/dialog.js";
import { bytesOf, el, freeId, setText, show, svg } from "../shared/dom.js";
import { address } from "../shared/net.js";
import { term as explained } from "../shared/terms.js";
import { line } from "../shared/theme.js";
import { optionsOf } from "../shared/widgets.js";
import { fitted, roomFor } from "./axes.js";
import { CONFIG, baseLayout, merge, textSize } from "./style.js";
import { pathOf } from "./plot.js";

// Extends the lines of a plot without a full redraw.
//
// A full `Plotly.react` costs about 15 ms, regardless of what changed. New points are drawn as a path of our
// own at the end of each line: the browser repaints only the small area that it covers, and only the last
// part of a long path is rewritten. Axes, legend, markers and hover texts wait for the next full drawing.

const TAIL = "ddp-tail";
const TAIL_POINTS = 150;

/**
 * A key of everything in a figure except the points of its lines: if it is unchanged, only the lines grow.
 */
function lineParts({ data, layout, title, revision, end }) {
  const traces = data.map((trace) => [
    trace.name,
    trace.mode,
    trace.line,
    trace.mode === "lines" ? null : trace.x.length,
  ]);
  return JSON.stringify([traces, layout, title, revision, end]);
}

/**
 * Called after Plotly has drawn (also after a zoom): removes our paths and returns the number of points drawn
 * per line.
 */
function noteDrawn(plot) {
  for (const tail of plot.querySelectorAll(`.${TAIL}`)) tail.remove();
  return plot.calcdata.map((points) => points.length);
}

/**
 * Draws the points since `drawn`. Returns false if a full drawing is needed: a point is outside the axes, or
 * Plotly has not drawn a line yet.
 */
function growLines(plot, data, drawn, isZoomed) {
  const { xaxis, yaxis } = plot._fullLayout ?? {};
  if (!xaxis || !yaxis) return false;
  const paths = pathsByTrace(plot);
  const ready = [];
  for (const [index, trace] of data.entries()) {
    if (trace.mode !== "lines" || plot._fullData[index]?.visible === "legendonly") continue;
    const path = paths.get(index);
    if (!path || trace.x.length < drawn[index] || (!isZoomed && !fits(trace, xaxis, yaxis))) return false;
    ready.push([path, trace, index]);
  }
  for (const [path, trace, index] of ready) {
    const tail = tailOf(path, Math.max(0, drawn[index] - 1), trace.x.length);
    tail.setAttribute("d", tailPath(trace, Number(tail.dataset.from), xaxis, yaxis));
    tail.dataset.to = trace.x.length - 1;
    // Code that reads the plot's points must see the drawn ones.
    Object.assign(plot.data[index], { x: trace.x, y: trace.y });
  }
  return true;
}

/**
 * Returns the path that continues a line in the same style; `data-from` is the index of its first point. A
 * long path is left unchanged and continued by a new one.
 */
function tailOf(path, from, length) {
  let last = path;
  const isTail = (element) => element?.classList.contains(TAIL);
  while (isTail(last.nextElementSibling)) last = last.nextElementSibling;
  if (last !== path && length - Number(last.dataset.from) <= TAIL_POINTS) return last;
  const tail = path.cloneNode(false);
  tail.setAttribute("class", TAIL);
  tail.dataset.from = last === path ? from : last.dataset.to;
  last.after(tail);
  return tail;
}

function pathsByTrace(plot) {
  const paths = new Map();
  for (const group of plot.querySelectorAll(".scatterlayer > .trace")) {
    const index = group.__data__?.[0]?.trace?.index;
    const path = group.querySelector("path.js-line");
    if (index !== undefined && path) paths.set(index, path);
  }
  return paths;
}

/** True if the latest points are within the axis ranges. */
function fits({ x, y }, xaxis, yaxis) {
  const last = xaxis.r2c(xaxis.range[1]);
  const [low, high] = yaxis.range.map((value) => yaxis.r2c(value)).sort((a, b) => a - b);
  if (x.at(-1) > last) return false;
  for (let index = Math.max(0, y.length - 100); index < y.length; index += 1) {
    if (y[index] !== null && (y[index] > high || y[index] < low)) return false;
  }
  return true;
}

function tailPath({ x, y }, from, xaxis, yaxis) {
  const places = x.slice(from).map((value) => xaxis.c2p(value));
  return pathOf(
    places.map((place, index) => [place, y[from + index] === null ? null : yaxis.c2p(y[from + index])]),
  );
}

// Controls of a chart: small selects next to its title, and its toolbar.

/**
 * A select that calls `onChoose` with the new value.
 * @param {string} label
 * @param {[string, string][]} options values and their labels
 * @param {string} chosen
 * @param {(value: string) => void} onChoose
 */
export function select(label, options, chosen, onChoose) {
  const attributes = { "aria-label": label, title: label, class: "ddp-select-small" };
  const onchange = ({ target }) => onChoose(target.value);
  return el("select", { ...attributes, onchange }, optionsOf(options, chosen));
}

/**
 * A select of the scale of the y-axis; calls `onChoose` with whether it is logarithmic.
 * @param {boolean} isLogarithmic
 * @param {(isLogarithmic: boolean) => void} onChoose
 */
export function scaleSelect(isLogarithmic, onChoose) {
  const chosen = isLogarithmic ? "log" : "linear";
  /** @type {[string, string][]} */
  const scales = [["linear", "linear"], ["log", "logarithmic"]]; // prettier-ignore
  return select("Scale", scales, chosen, (scale) => onChoose(scale === "log"));
}

/** @type {WeakSet<HTMLElement>} Toolbars that already have a key listener. */
const withKeys = new WeakSet();

/**
 * Makes the buttons of a toolbar one stop of the Tab key; arrow keys, Home and End move between them.
 * @param {HTMLElement | null} toolbar
 * @param {string} label
 */
function oneTabStop(toolbar, label) {
  const buttons = [...(toolbar?.querySelectorAll("button") ?? [])];
  if (!toolbar || buttons.filter(({ tabIndex }) => tabIndex === 0).length < 2) return;
  for (const button of buttons.slice(1)) button.tabIndex = -1;
  toolbar.role = "toolbar";
  toolbar.ariaLabel = label;
  if (withKeys.has(toolbar)) return; // Plotly replaced only the buttons
  withKeys.add(toolbar);
  toolbar.addEventListener("keydown", (event) => {
    const now = [...toolbar.querySelectorAll("button")];
    const at = now.findIndex((button) => button === document.activeElement);
    const { length } = now;
    const to = { ArrowRight: at + 1, ArrowLeft: at + length - 1, Home: 0, End: length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    for (const [index, button] of now.entries()) button.tabIndex = index === to % length ? 0 : -1;
    now[to % length].focus();
  });
}

const REFINE_AFTER_MS = 60;
// Between two full drawings only the lines grow, at a twentieth of the cost. Without a pointer over the
// chart, full drawings can be rare.
const FULL_EVERY_MS = 30000;
const FULL_EVERY_UNDER_POINTER_MS = 1000;
const MAX_GROWN_POINTS = 3000;
// The fraction of a growing curve's height that is left free for its next points.
const HEADROOM = 0.2;

let loading = null;

/** Resolves to Plotly. Keeps its own reference, because another script may replace `window.Plotly` later. */
export function loadPlotly() {
  const packed = document.getElementById("packed-plotly");
  loading ??= packed ? unpacked(packed.textContent) : served();
  return loading;
}

/** Plotly out of a file that holds it compressed: its text is a quarter of the size. */
async function unpacked(text) {
  const bytes = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(bytes).text();
  document.head.append(script);
  return window.Plotly;
}

function served() {
  return new Promise((resolve, reject) => {
    if (window.Plotly) {
      resolve(window.Plotly);
      return;
    }
    // The page may have preloaded the file; it is executed only now, after all other requests were sent.
    /** @type {HTMLLinkElement | null} */
    const fetched = document.querySelector('link[rel="preload"][href*="live/plotly.min.js"]');
    const script = el("script", { src: fetched?.href ?? address("live/plotly.min.js") });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () =>
      reject(new Error("plotly.min.js did not arrive. Reload the page.")),
    );
    document.head.append(script);
  });
}

export class Chart {
  isDirty = true;
  isVisible = false;
  isDrawn = false;
  isPointed = false;
  isZoomed = false;
  hasComplained = false;
  hasPoints = false;
  /** @type {any} */
  focusedTool = null;
  room = roomFor(0, 0, 1);
  drawnAt = -Infinity;
  fullAt = -Infinity;
  fine = {};
  /** @type {any} */
  config = null;
  watches = null;
  revision = 0;
  zoomRevision = 0;

  /**
   * `figure(fine, room)` returns {data, layout, title?, revision?, end?, empty?} for the current points:
   * `end` is the end of a growing axis, `empty` the text without points, `room` the result of `roomFor`.
   * `fetchRange(low, high)` resolves to finer traces of the range the user zoomed into. `everyMs` is the
   * minimum time between two drawings. `onVisible()` is called when a chart that is due becomes visible; without
   * it the chart draws itself. `controls` are placed next to the title, which has a tooltip if it has a glossary
   * `term`.
   * @param {Record<string, any>} options
   */
  constructor({
    name,
    title,
    term = "",
    empty,
    figure,
    fetchRange = null,
    everyMs = 0,
    onVisible,
    controls,
  }) {
    this.figure = figure;
    this.fetchRange = fetchRange;
    this.everyMs = everyMs;
    this.onVisible = onVisible ?? (() => this.drawDue());
    const id = freeId(`ddp-chart-${name}`);
    this.title = term ? explained(term, title) : el("span", {}, title);
    this.plot = el("div", { class: "ddp-plot" });
    this.empty = el("p", { class: "ddp-plot-empty" }, empty);
    this.box = el("div", { class: "ddp-plot-box" }, this.plot, this.empty);
    this.element = el(
      "figure",
      { class: "ddp-card ddp-chart", "data-chart": name, "aria-labelledby": id },
      el("div", { class: "ddp-chart-head" }, el("h3", { id }, this.title), controls),
      this.box,
    );
    // The hover texts show the points of the last full drawing, so a pointer makes full drawings more
    // frequent.
    this.plot.addEventListener("pointerenter", () => this.pointed(true));
    this.plot.addEventListener("pointerleave", () => this.pointed(false));
    this.sight = new IntersectionObserver(
      (entries) => {
        this.isVisible = entries.at(-1)?.isIntersecting ?? false;
        if (this.isVisible && this.isDirty) this.onVisible();
      },
      { rootMargin: "150px" },
    );
    this.sight.observe(this.element);
    this.size = new ResizeObserver(() => {
      if (this.isDrawn) afterPaint(() => this.resized());
    });
    this.size.observe(this.plot);
  }

  /**
   * True if drawing would show something new: the chart is visible or was never drawn, and no drag is in
   * progress.
   */
  get isDue() {
    return this.isDirty && (this.isVisible || !this.isDrawn) && !this.plot._dragging;
  }

  /** Requires a full drawing. */
  invalidate() {
    this.isDirty = true;
    this.fullAt = -Infinity;
  }

  /** Draws the chart, if it is due, as soon as Plotly is loaded. */
  async drawDue() {
    try {
      const plotly = await loadPlotly();
      if (this.element.isConnected && this.isDue) await this.draw(plotly);
    } catch (error) {
      // Once: some charts are drawn again every second.
      if (!this.hasComplained) showError(`The chart could not be drawn: ${error.message}`);
      this.hasComplained = true;
    }
  }

  /** Milliseconds until the next drawing is allowed. */
  get rest() {
    return Math.max(0, this.drawnAt + this.everyMs - performance.now());
  }

  /**
   * Draws the current points; resolves to true after a full drawing, to false if only the lines grew.
   */
  async draw(plotly) {
    this.plotly = plotly;
    this.isDirty = false;
    this.drawnAt = performance.now();
    this.room = this.roomNow();
    const figure = this.figure(this.fine, this.room);
    if (figure.title) setText(this.title, figure.title);
    this.hasPoints = figure.data.some((trace) => trace.x.length > 0);
    if (figure.empty) setText(this.empty, figure.empty);
    show(this.empty, !this.hasPoints);
    if (!this.hasPoints && !this.isDrawn) return false;
    const parts = lineParts(figure);
    if (this.canOnlyGrow(parts, figure) && growLines(this.plot, figure.data, this.drawn, this.isZoomed)) {
      return false;
    }
    await this.drawWhole(figure, parts);
    return true;
  }

  canOnlyGrow(parts, { data }) {
    if (!this.isDrawn || parts !== this.parts) return false;
    const everyMs = this.isPointed ? FULL_EVERY_UNDER_POINTER_MS : FULL_EVERY_MS;
    const grown = data.reduce((sum, { x }, index) => sum + x.length - this.drawn[index], 0);
    return grown < MAX_GROWN_POINTS && this.drawnAt - this.fullAt < everyMs;
  }

  pointed(isPointed) {
    this.isPointed = isPointed;
    if (!isPointed || !this.isDrawn || this.drawnAt - this.fullAt < FULL_EVERY_UNDER_POINTER_MS) return;
    this.invalidate();
    this.onVisible();
  }

  roomNow() {
    return roomFor(this.plot.clientWidth, this.plot.clientHeight, textSize());
  }

  /** After a resize another number of ticks and labels may fit. */
  async resized() {
    if (!this.plot.isConnected || this.plot.offsetWidth === 0) return;
    await this.plotly.Plots.resize(this.plot);
    const hasOtherRoom = JSON.stringify(this.roomNow()) !== JSON.stringify(this.room);
    if (hasOtherRoom || this.isLegendOverCurves()) this.redraw();
  }

  /** Plotly moves a legend that gets another row in a resize only when it draws the next time. */
  isLegendOverCurves() {
    const [legend, curves] = [".legend", ".nsewdrag"].map((part) => this.plot.querySelector(part));
    if (!legend || !curves) return false;
    return legend.getBoundingClientRect().bottom > curves.getBoundingClientRect().top + 1;
  }

  async drawWhole({ data, layout, revision = "", end }, parts) {
    this.parts = parts;
    this.fullAt = this.drawnAt;
    this.revision += 1;
    const base = baseLayout(this.revision, revision, this.zoomRevision);
    // Plotly keeps the user's range only while ours stays equal, but ours grows: pass the user's range
    // explicitly.
    if (this.isZoomed) base.xaxis.range = [...this.plot.layout.xaxis.range];
    else if (end > 0) {
      base.xaxis.range = [layout.xaxis?.start ?? 0, end];
      base.yaxis.autorangeoptions = { include: headroom(data, layout.yaxis, end) };
    }
    // Must be the same object each time: Plotly rebuilds the plot for a new one.
    this.config ??= { ...CONFIG, modeBarButtonsToAdd: [this.wholeButton()] };
    await this.plotly.react(this.plot, data, fitted(merge(base, layout), this.room), this.config);
    this.drawn = noteDrawn(this.plot);
    this.keepOneTabStop();
    if (!this.isDrawn) {
      this.isDrawn = true;
      this.plot.on("plotly_afterplot", () => {
        this.drawn = noteDrawn(this.plot);
        this.keepOneTabStop(); // Plotly replaces the buttons after a resize
      });
      this.followFocus();
      this.plot.on("plotly_relayout", (change) => this.zoomed(change));
      this.plot.on("plotly_doubleclick", () => this.unzoom());
    }
  }

  /** Makes the tools a single tab stop, and restores the focus if Plotly has replaced the focused one. */
  keepOneTabStop() {
    const toolbar = this.plot.querySelector(".modebar");
    oneTabStop(toolbar, `Tools of the chart: ${this.title.textContent}`);
    if (!this.focusedTool || this.focusedTool.isConnected || document.activeElement !== document.body) return;
    const buttons = [...(toolbar?.querySelectorAll("button") ?? [])];
    const same = buttons.find(({ dataset }) => dataset.title === this.focusedTool.dataset.title);
    for (const button of buttons) button.tabIndex = button === (same ?? buttons[0]) ? 0 : -1;
    same?.focus({ preventScroll: true });
  }

  /** Remembers which tool has the focus. A tool that Plotly removes loses it without another gaining it. */
  followFocus() {
    this.plot.addEventListener("focusin", ({ target }) => {
      this.focusedTool = target.closest(".modebar button");
    });
    this.plot.addEventListener("focusout", ({ target }) => {
      setTimeout(() => {
        const isLeft = target === this.focusedTool && target.isConnected;
        if (isLeft && target !== document.activeElement) this.focusedTool = null;
      });
    });
  }

  wholeButton() {
    return {
      name: "whole",
      title: "Show the whole curve",
      icon: this.plotly.Icons.home,
      click: () => this.unzoom(),
    };
  }

  /** Fetches finer points for the range the user zoomed into. */
  zoomed(change) {
    if (!Object.keys(change).some((key) => key.startsWith("xaxis.") || key.startsWith("yaxis."))) return;
    if (change["xaxis.autorange"] || change["xaxis.showspikes"] === false) {
      this.unzoom();
      return;
    }
    this.isZoomed = true;
    clearTimeout(this.refining);
    const axis = this.plot._fullLayout.xaxis;
    if (!this.fetchRange || !axis) return;
    const [low, high] = axis.range.map((value) => axis.r2c(value));
    this.refining = setTimeout(async () => {
      const fine = await this.fetchRange(low, high);
      if (fine && this.isZoomed) {
        this.fine = fine;
        this.redraw();
      }
    }, REFINE_AFTER_MS);
  }

  /** Shows the complete curve again. A new revision makes Plotly forget the old zoom. */
  unzoom() {
    clearTimeout(this.refining);
    this.isZoomed = false;
    this.fine = {};
    this.zoomRevision += 1;
    this.redraw();
  }

  redraw() {
    this.invalidate();
    if (this.plotly) this.draw(this.plotly);
  }

  /** Fetches the finer points of the zoom again after the run's points were replaced. */
  refetchFine() {
    this.fullAt = -Infinity;
    if (!this.isZoomed) return;
    this.zoomed({ "xaxis.range": this.plot.layout.xaxis.range });
  }

  close() {
    clearTimeout(this.refining);
    this.sight.disconnect();
    this.size.disconnect();
    if (this.isDrawn) this.plotly.purge(this.plot);
  }
}

/** Values the y-axis should include, so that the next points of a growing line fit. */
function headroom(data, yaxis, end) {
  const lines = data.filter(({ mode, x }) => mode === "lines" && x.at(-1) < end);
  const values = lines.flatMap(({ y }) => y.filter((value) => value !== null));
  if (values.length === 0) return [];
  const isLogarithmic = yaxis.type === "log";
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  if (isLogarithmic && low <= 0) return [];
  if (isLogarithmic) return [low * (low / high) ** HEADROOM, high];
  const margin = HEADROOM * (high - low);
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin / 2];
}

// A short sample of a chart's line, shown next to a name as its legend.

/** @type {Record<string, string | null>} */
const DASHES = { solid: null, dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "14 5" };

/**
 * A sample of the n-th line.
 * @param {number} index
 */
export function lineSample(index) {
  const { color, dash } = line(index);
  const drawn = svg("line", {
    x1: 0,
    y1: 4,
    x2: 44,
    y2: 4,
    stroke: color,
    "stroke-width": 3,
    ...(DASHES[dash] ? { "stroke-dasharray": DASHES[dash] } : {}),
  });
  return svg("svg", { viewBox: "0 0 44 8", class: "ddp-line-sample", "aria-hidden": "true" }, drawn);
}
