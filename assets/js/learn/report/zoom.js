// The script of a lab report: zooms its charts and shows values under the pointer. It is embedded in the file
// with the modules it imports (`ddp_gui/learn/report/document.py`); the report can be read without it.

import { readWords, ticks, tickWords, nearestPoint, pointsOf, rangeOf } from "../../charts/plot.js";

const UNITS = 100000;
const DEEPEST = 1 / 400;
const STEP = 0.6;
const KEYS = "Drag over it to zoom. Keys: + and − zoom, arrows move, 0 shows the whole.";
const SVG = "http://www.w3.org/2000/svg";
const WHOLE = { x: 0, y: 0, width: UNITS, height: UNITS };

function drawing(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  place(element, attributes);
  element.textContent = text;
  return element;
}

function place(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
}

class Chart {
  /** @param {HTMLElement} figure */
  constructor(figure) {
    const of = (selector) => /** @type {any} */ (figure.querySelector(selector));
    this.frame = of(".frame");
    this.plot = of(".plot");
    this.grid = of(".grid");
    this.across = of(".x-ticks");
    this.upward = of(".y-ticks");
    this.axis = of(".x-title").textContent;
    this.marks = [...figure.querySelectorAll(".over text")];
    this.marked = (figure.dataset.marks ?? "").split(" ").filter(Boolean).map(Number);
    this.x = endsOf(figure.dataset.x);
    this.y = endsOf(figure.dataset.y);
    this.isLogarithmic = "log" in figure.dataset;
    this.isShare = "share" in figure.dataset;
    this.cursor = drawing("path", { class: "cursor" });
    this.band = drawing("rect", { class: "band" });
    this.plot.append(this.cursor, this.band);
    this.reading = document.createElement("p");
    this.reading.className = "reading";
    this.frame.after(this.reading);
    this.frame.tabIndex = 0;
    this.frame.setAttribute("aria-description", KEYS);
    /** @type {{ name: string, points: any[] }[] | null} */
    this.known = null;
    this.view = WHOLE;
    this.reset = this.button("Whole", "Show the whole", () => this.show(WHOLE));
    this.reset.hidden = true;
    of("figcaption").append(this.tools());
    this.listen();
  }

  tools() {
    const tools = document.createElement("div");
    place(tools, { class: "tools", role: "group", "aria-label": "Zoom" });
    tools.append(
      this.reset,
      this.button("←", "Move left", () => this.move(-0.25)),
      this.button("→", "Move right", () => this.move(0.25)),
      this.button("−", "Zoom out", () => this.zoom(1 / STEP)),
      this.button("+", "Zoom in", () => this.zoom(STEP)),
    );
    return tools;
  }

  button(sign, title, does) {
    const button = document.createElement("button");
    place(button, { type: "button", title, "aria-label": title });
    button.textContent = sign;
    button.addEventListener("click", does);
    return button;
  }

  listen() {
    this.frame.addEventListener("keydown", (event) => this.pressed(event));
    this.plot.addEventListener("pointermove", (event) => this.read(event));
    this.plot.addEventListener("pointerleave", () => this.readNothing());
    this.plot.addEventListener("pointerdown", (event) => this.begin(event));
    this.plot.addEventListener("dblclick", () => this.show(WHOLE));
    // Scrolling past a chart must scroll the page: the wheel zooms only a focused chart, or with Ctrl.
    const onWheel = (event) => {
      if (!event.ctrlKey && document.activeElement !== this.frame) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1 / STEP : STEP, this.placeOf(event).x);
    };
    this.plot.addEventListener("wheel", onWheel, { passive: false });
  }

  pressed(event) {
    /** @type {Record<string, () => void>} */
    const does = {
      "+": () => this.zoom(STEP),
      "=": () => this.zoom(STEP),
      "-": () => this.zoom(1 / STEP),
      ArrowLeft: () => this.move(-0.25),
      ArrowRight: () => this.move(0.25),
      0: () => this.show(WHOLE),
      Escape: () => this.show(WHOLE),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in does)) return;
    event.preventDefault();
    does[event.key]();
  }

  /** The position of a pointer in units of the picture. */
  placeOf(event) {
    const box = this.plot.getBoundingClientRect();
    const { x, y, width, height } = this.view;
    return {
      x: x + ((event.clientX - box.left) / box.width) * width,
      y: y + ((event.clientY - box.top) / box.height) * height,
    };
  }

  /** Zooms to a dragged box; a flat box zooms only the x-axis and fits the y-axis to the curves. */
  begin(event) {
    if (event.button !== 0) return;
    this.frame.focus({ preventScroll: true });
    this.plot.setPointerCapture(event.pointerId);
    const over = new AbortController();
    const from = this.placeOf(event);
    let box = { x: from.x, y: from.y, width: 0, height: 0 };
    const move = (moved) => {
      box = boxOf(from, this.placeOf(moved));
      const { y, height } = this.view;
      place(this.band, this.isFlat(box) ? { ...box, y, height } : box);
    };
    const end = (ended) => {
      over.abort();
      place(this.band, { width: 0, height: 0 });
      if (ended.type !== "pointerup" || box.width < this.view.width / 50) return;
      this.show(this.isFlat(box) ? this.fitted(box.x, box.width) : box);
    };
    this.plot.addEventListener("pointermove", move, { signal: over.signal });
    this.plot.addEventListener("pointerup", end, { signal: over.signal });
    this.plot.addEventListener("pointercancel", end, { signal: over.signal });
  }

  isFlat({ height }) {
    return height < this.view.height / 8;
  }

  zoom(factor, around = this.view.x + this.view.width / 2) {
    const width = Math.min(UNITS, Math.max(UNITS * DEEPEST, this.view.width * factor));
    const share = (around - this.view.x) / this.view.width;
    this.show(width >= UNITS ? WHOLE : this.fitted(around - share * width, width));
  }

  move(share) {
    const { x, width } = this.view;
    if (width < UNITS) this.show(this.fitted(x + share * width, width));
  }

  /** A range of the x-axis with the y range of the curves in it. */
  fitted(from, wanted) {
    const width = Math.max(wanted, UNITS * DEEPEST);
    const x = Math.min(Math.max(from, 0), UNITS - width);
    const drawn = this.curves.map(({ points }) => points);
    const range = rangeOf(drawn, x, x + width);
    if (!range) return { x, width, y: this.view.y, height: this.view.height };
    const [top, bottom] = range;
    const height = Math.max(bottom - top, UNITS * DEEPEST) * 1.1;
    return { x, width, y: (top + bottom) / 2 - height / 2, height };
  }

  /** The name and the points of each curve. */
  get curves() {
    this.known ??= [...this.plot.querySelectorAll(".line")].map((path) => ({
      name: path.dataset.name,
      points: pointsOf(path.getAttribute("d")),
    }));
    return this.known;
  }

  valueAt(up) {
    const value = this.y.high - (up / UNITS) * (this.y.high - this.y.low);
    return this.isLogarithmic ? 10 ** value : value;
  }

  placeAt(across) {
    return this.x.low + (across / UNITS) * (this.x.high - this.x.low);
  }

  /** Shows the value of each curve at the pointer. */
  read(event) {
    const { x } = this.placeOf(event);
    const found = this.curves
      .flatMap(({ name, points }) => {
        const point = nearestPoint(points, x);
        return point ? [{ name, point }] : [];
      })
      .filter(({ point }) => Math.abs(point[0] - x) < this.view.width / 10);
    if (found.length === 0) {
      this.readNothing();
      return;
    }
    const nearest = found.reduce((best, { point }) => (nearer(point, best, x) ? point[0] : best), Infinity);
    const said = found.map(
      ({ name, point }) => `${name}: ${readWords(this.valueAt(point[1]), this.isShare)}`,
    );
    this.reading.textContent = `${this.axis} ${readWords(this.placeAt(nearest), false)} · ${said.join(" · ")}`;
    place(this.cursor, { d: `M${Math.round(nearest)} -${UNITS}V${2 * UNITS}` });
  }

  readNothing() {
    this.reading.textContent = "";
    this.cursor.removeAttribute("d");
  }

  show(view) {
    this.view = view;
    const { x, y, width, height } = view;
    place(this.plot, { viewBox: `${x} ${y} ${width} ${height}` });
    this.reset.hidden = view === WHOLE;
    const [left, right] = [this.placeAt(x), this.placeAt(x + width)];
    const span = this.y.high - this.y.low;
    const high = this.y.high - (y / UNITS) * span;
    const low = high - (height / UNITS) * span;
    this.writeAxes([left, right], [low, high]);
    this.marks.forEach((text, index) => {
      const share = (this.marked[index] - left) / (right - left);
      const visibility = share >= 0 && share <= 1 ? "visible" : "hidden";
      place(text, { x: `${share * 100}%`, visibility });
    });
  }

  writeAxes([left, right], [low, high]) {
    const { x, y, width, height } = this.view;
    const across = ticks(left, right, 6, false).map((tick) => ({
      ...tick,
      share: (tick.place - left) / (right - left),
    }));
    const upward = ticks(low, high, 5, this.isLogarithmic).map((tick) => ({
      ...tick,
      share: (high - tick.place) / (high - low),
    }));
    const lines = [
      ...across.map(({ share }) => `M${Math.round(x + share * width)} ${y}v${height}`),
      ...upward.map(({ share }) => `M${x} ${Math.round(y + share * height)}h${width}`),
    ];
    place(this.grid, { d: lines.join("") });
    this.across.replaceChildren(
      ...across.map((tick) => {
        const at = { x: `${tick.share * 100}%`, y: 15, "text-anchor": "middle" };
        return drawing("text", at, tickWords(tick.place, tick.step, false));
      }),
    );
    this.upward.replaceChildren(
      ...upward.map((tick) => {
        const at = { x: "100%", y: `${tick.share * 100}%`, dx: -6, dy: 4, "text-anchor": "end" };
        const written = this.isLogarithmic
          ? readWords(10 ** tick.place, false)
          : tickWords(tick.place, tick.step, this.isShare);
        return drawing("text", at, written);
      }),
    );
  }
}

/** Parses the ends of an axis from a data attribute. */
function endsOf(written = "0 1") {
  const [low, high] = written.split(" ").map(Number);
  return { low, high };
}

function boxOf(from, to) {
  return {
    x: Math.min(from.x, to.x),
    y: Math.min(from.y, to.y),
    width: Math.abs(to.x - from.x),
    height: Math.abs(to.y - from.y),
  };
}

function nearer(point, best, x) {
  return Math.abs(point[0] - x) < Math.abs(best - x);
}

export const charts = [...document.querySelectorAll("figure.chart")].map(
  (figure) => new Chart(/** @type {HTMLElement} */ (figure)),
);
