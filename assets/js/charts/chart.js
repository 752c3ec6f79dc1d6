// One chart: a Plotly plot that keeps the user's zoom while points come in, and draws only what can be seen.

import { el, freeId, setText, show } from "../shared/dom.js";
import { oneTabStop } from "./controls.js";
import { growLines, lineParts, noteDrawn } from "./lines.js";
import { fitted, roomFor } from "./room.js";
import { baseLayout, CONFIG, merge, textSize } from "./style.js";
import { address } from "../shared/net.js";
import { term as explained } from "../shared/terms.js";
import { afterPaint } from "../shared/throttle.js";

const REFINE_AFTER_MS = 60;
// Between two full drawings only the lines grow, which costs a twentieth: fewer of them where nobody points.
const FULL_EVERY_MS = 30000;
const FULL_WHERE_POINTED_MS = 1000;
const MOST_GROWN_POINTS = 3000;
// Of the height of a curve that grows, so much is left free where it may go next.
const HEADROOM = 0.2;

let loading = null;

/** Resolves to Plotly: our own reference, whatever another script makes of `window.Plotly` later. */
export function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    if (window.Plotly) {
      resolve(window.Plotly);
      return;
    }
    // The page may have begun to fetch it; it is run only now, when everything else has been asked for.
    /** @type {HTMLLinkElement | null} */
    const fetched = document.querySelector('link[rel="preload"][href*="live/plotly.min.js"]');
    const script = el("script", { src: fetched?.href ?? address("live/plotly.min.js") });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new Error("plotly.min.js could not be loaded")));
    document.head.append(script);
  });
  return loading;
}

export class Chart {
  /**
   * `figure(fine, room)` returns {data, layout, title?, revision?, end?, empty?} for what is held now, `end` being
   * the last place of a growing axis, `empty` what is said while there is no point; `room` is that of `roomFor`; `fetchRange(low, high)`, where given, resolves to the finer traces of a range
   * the user zoomed into; `everyMs` is the least time between two drawings; `controls` go beside the title, which
   * is explained where the glossary's `term` for it is given.
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
    controls = null,
  }) {
    this.figure = figure;
    this.fetchRange = fetchRange;
    this.everyMs = everyMs;
    this.onVisible = onVisible;
    this.isDirty = true;
    this.isVisible = false;
    this.isDrawn = false;
    this.hasPoints = false;
    this.room = roomFor(0, 0, 1);
    this.isZoomed = false;
    this.drawnAt = -Infinity;
    this.fullAt = -Infinity;
    this.fine = {};
    this.config = null;
    this.watches = null;
    this.revision = 0;
    this.zoomRevision = 0;
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
    // What is said under the pointer is of the last full drawing.
    this.plot.addEventListener("pointerenter", () => this.pointed(true));
    this.plot.addEventListener("pointerleave", () => this.pointed(false));
    this.isPointed = false;
    this.sight = new IntersectionObserver(
      (entries) => {
        this.isVisible = entries.at(-1)?.isIntersecting ?? false;
        if (this.isVisible && this.isDirty) onVisible();
      },
      { rootMargin: "150px" },
    );
    this.sight.observe(this.element);
    this.size = new ResizeObserver(() => {
      if (this.isDrawn) afterPaint(() => this.resized());
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

  /** Draws what is held now; resolves, when it is on the page, to whether the whole chart was drawn. */
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
    const everyMs = this.isPointed ? FULL_WHERE_POINTED_MS : FULL_EVERY_MS;
    const grown = data.reduce((sum, { x }, index) => sum + x.length - this.drawn[index], 0);
    return grown < MOST_GROWN_POINTS && this.drawnAt - this.fullAt < everyMs;
  }

  pointed(isPointed) {
    this.isPointed = isPointed;
    if (!isPointed || !this.isDrawn || this.drawnAt - this.fullAt < FULL_WHERE_POINTED_MS) return;
    this.fullAt = -Infinity;
    this.isDirty = true;
    this.onVisible();
  }

  roomNow() {
    return roomFor(this.plot.clientWidth, this.plot.clientHeight, textSize());
  }

  /** Another size: another number of ticks and words may fit. */
  async resized() {
    if (!this.plot.isConnected || this.plot.offsetWidth === 0) return;
    await this.plotly.Plots.resize(this.plot);
    if (JSON.stringify(this.roomNow()) !== JSON.stringify(this.room)) this.redraw();
  }

  async drawWhole({ data, layout, revision = "", end }, parts) {
    this.parts = parts;
    this.fullAt = this.drawnAt;
    this.revision += 1;
    const base = baseLayout(this.revision, revision, this.zoomRevision);
    // Plotly keeps the user's range only while ours stays the same, and ours grows: so theirs is given.
    if (this.isZoomed) base.xaxis.range = [...this.plot.layout.xaxis.range];
    else if (end > 0) {
      base.xaxis.range = [layout.xaxis?.start ?? 0, end];
      base.yaxis.autorangeoptions = { include: headroom(data, layout.yaxis, end) };
    }
    // The same object each time: another one would make Plotly begin anew.
    this.config ??= { ...CONFIG, modeBarButtonsToAdd: [this.wholeButton()] };
    await this.plotly.react(this.plot, data, fitted(merge(base, layout), this.room), this.config);
    this.drawn = noteDrawn(this.plot);
    this.keepOneTabStop();
    if (!this.isDrawn) {
      this.isDrawn = true;
      this.plot.on("plotly_afterplot", () => {
        this.drawn = noteDrawn(this.plot);
        this.keepOneTabStop(); // Plotly makes other buttons where the size is new
      });
      this.plot.on("plotly_relayout", (change) => this.zoomed(change));
      this.plot.on("plotly_doubleclick", () => this.unzoom());
    }
  }

  keepOneTabStop() {
    oneTabStop(this.plot.querySelector(".modebar"), `Tools of the chart: ${this.title.textContent}`);
  }

  wholeButton() {
    return {
      name: "whole",
      title: "Show the whole curve",
      icon: this.plotly.Icons.home,
      click: () => this.unzoom(),
    };
  }

  /** The user zoomed: asks for the finer points of what is shown now. */
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

  /** Back to the whole curve; another word for the zoom makes Plotly forget the old one. */
  unzoom() {
    clearTimeout(this.refining);
    this.isZoomed = false;
    this.fine = {};
    this.zoomRevision += 1;
    this.redraw();
  }

  redraw() {
    this.isDirty = true;
    this.fullAt = -Infinity;
    if (this.plotly) this.draw(this.plotly);
  }

  /** The run's points were replaced: what a zoom brought in is asked for again. */
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

/** Places that the y-axis should show too, so that the next points of a growing line lie on it. */
function headroom(data, yaxis, end) {
  const lines = data.filter(({ mode, x }) => mode === "lines" && x.at(-1) < end);
  const values = lines.flatMap(({ y }) => y.filter((value) => value !== null));
  if (values.length === 0) return [];
  const isLogarithmic = yaxis.type === "log";
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  if (isLogarithmic && low <= 0) return [];
  if (isLogarithmic) return [low * (low / high) ** HEADROOM, high];
  const room = HEADROOM * (high - low);
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room / 2];
}
