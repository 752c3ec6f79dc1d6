// The loss of a run over its steps, as one SVG picture without a library.

import { valueAt } from "../charts/traces.js";
import { ticks, tickWords } from "../learn/report/plot.js";
import { el, setAttribute, setText, svg } from "../shared/dom.js";
import { count, loss } from "../shared/format.js";

const HEIGHT = 220;
const MARGIN = { left: 52, right: 12, top: 10, bottom: 24 };
const NARROWEST = 200;
/** The curves: the name of the trace and its words in the legend. */
const CURVES = [
  ["loss", "training loss"],
  ["loss_smooth", "smoothed"],
  ["validation_loss", "validation"],
];

export class LossChart {
  constructor() {
    /** @type {any} The scale of the drawn curves; null without any. */
    this.scale = null;
    this.grid = svg("g", { class: "ddp-notebook-grid" });
    this.paths = new Map(CURVES.map(([name]) => [name, svg("path", { class: `ddp-notebook-${name}` })]));
    this.cursor = svg("path", { class: "ddp-notebook-cursor" });
    this.picture = svg(
      "svg",
      { role: "img", height: HEIGHT },
      this.grid,
      ...this.paths.values(),
      this.cursor,
    );
    this.reading = el("p", { class: "ddp-notebook-reading" }, "\u00a0");
    const legend = CURVES.map(([name, words]) =>
      el("span", {}, el("i", { class: `ddp-notebook-${name}`, "aria-hidden": "true" }), words),
    );
    this.element = el(
      "figure",
      { class: "ddp-notebook-chart" },
      el("figcaption", {}, ...legend, this.reading),
      this.picture,
    );
    this.picture.addEventListener("pointermove", (event) => this.read(event));
    this.picture.addEventListener("pointerleave", () => this.readNothing());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  update(traces) {
    this.traces = traces;
    this.draw();
  }

  draw() {
    const shown = CURVES.map(([name]) => [name, this.traces?.get(name) ?? { x: [], y: [] }]);
    const xs = shown.flatMap(([, { x }]) => x);
    const ys = shown.flatMap(([, { y }]) => y).filter((value) => value !== null);
    this.scale = null;
    this.grid.replaceChildren();
    if (ys.length === 0) {
      this.grid.append(svg("text", { x: MARGIN.left, y: HEIGHT / 2 }, "Appears with the first steps."));
      return;
    }
    const width = Math.max(NARROWEST, this.element.clientWidth);
    setAttribute(this.picture, "width", width);
    const [last, low, high] = [Math.max(...xs, 1), Math.min(...ys), Math.max(...ys)];
    const span = high - low || Math.abs(high) || 1;
    const [inside, below] = [width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.bottom];
    const across = (step) => MARGIN.left + (step / last) * inside;
    const up = (value) => below - ((value - low) / span) * (below - MARGIN.top);
    this.scale = { across, last, inside };
    this.drawGrid({ across, up, last, low, high: low + span, width });
    for (const [name, { x, y }] of shown) {
      let [drawn, command] = ["", "M"];
      for (const [index, value] of y.entries()) {
        if (value !== null) drawn += `${command}${across(x[index]).toFixed(1)},${up(value).toFixed(1)}`;
        command = value === null ? "M" : "L";
      }
      setAttribute(this.paths.get(name), "d", drawn || null);
    }
    const words = `Training loss from ${loss(ys[0])} to ${loss(this.traces.get("loss").y.at(-1))}`;
    setAttribute(this.picture, "aria-label", `${words} over ${count(last)} steps`);
  }

  drawGrid({ across, up, last, low, high, width }) {
    for (const { place, step } of ticks(low, high, 4, false)) {
      const y = up(place);
      this.grid.append(
        svg("path", { d: `M${MARGIN.left},${y}H${width - MARGIN.right}` }),
        svg("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, tickWords(place, step, false)),
      );
    }
    for (const { place, step } of ticks(0, last, Math.max(2, width / 150), false)) {
      const [x, y] = [across(place), HEIGHT - 6];
      const anchor = place === 0 ? "start" : "middle";
      if (x < width - 70) {
        this.grid.append(svg("text", { x, y, "text-anchor": anchor }, tickWords(place, step, false)));
      }
    }
    this.grid.append(svg("text", { x: width - MARGIN.right, y: HEIGHT - 6, "text-anchor": "end" }, "step"));
  }

  /** Shows the values at the pointer. */
  read(event) {
    if (this.scale === null) return;
    const { across, last, inside } = this.scale;
    const x = event.clientX - this.picture.getBoundingClientRect().left;
    const step = Math.round(Math.min(Math.max(((x - MARGIN.left) / inside) * last, 0), last));
    /** @type {[string, number | null][]} */
    const values = CURVES.map(([name, words]) => [words, valueAt(this.traces.get(name), step)]);
    const known = values
      .filter(([, value]) => value !== null)
      .map(([words, value]) => `${words} ${loss(value)}`);
    setText(this.reading, `step ${count(step)}: ${known.join(", ")}`);
    setAttribute(this.cursor, "d", `M${across(step).toFixed(1)},${MARGIN.top}V${HEIGHT - MARGIN.bottom}`);
  }

  readNothing() {
    setText(this.reading, "\u00a0");
    setAttribute(this.cursor, "d", null);
  }
}
