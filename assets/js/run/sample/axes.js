// @ts-nocheck: subclasses of Drawing add members that the type checker does not know.
// The common part of drawn samples: axes, points with a shape and a colour per class, and a legend.

import { el } from "../../shared/dom.js";
import { number } from "../../shared/format.js";
import { textSize } from "../../charts/style.js";
import { chartColors, color, onThemeChange } from "../../shared/theme.js";

// For a text size of 12 pixels; scaled with the text.
const PADDING = { left: 46, right: 10, top: 8, bottom: 34 };

// Shapes of radius 1 around (0, 0), one per class, so that colour is not the only difference.
const SHAPES = [
  polygon(12, 0.9),
  [
    [-0.85, -0.85],
    [0.85, -0.85],
    [0.85, 0.85],
    [-0.85, 0.85],
  ],
  [
    [0, -1.1],
    [1, 0.8],
    [-1, 0.8],
  ],
  [
    [0, -1.25],
    [0.95, 0],
    [0, 1.25],
    [-0.95, 0],
  ],
  plus(0.4),
  [
    [0, 1.1],
    [1, -0.8],
    [-1, -0.8],
  ],
  polygon(5, 1.1),
  plus(0.4).map(([x, y]) => [(x - y) * 0.72, (x + y) * 0.72]),
];

function polygon(numCorners, radius) {
  const turn = (2 * Math.PI) / numCorners;
  return Array.from({ length: numCorners }, (_, i) => [
    radius * Math.sin(i * turn),
    -radius * Math.cos(i * turn),
  ]);
}

function plus(arm) {
  return [
    [-arm, -1.1],
    [arm, -1.1],
    [arm, -arm],
    [1.1, -arm],
    [1.1, arm],
    [arm, arm],
    [arm, 1.1],
    [-arm, 1.1],
    [-arm, arm],
    [-1.1, arm],
    [-1.1, -arm],
    [-arm, -arm],
  ];
}

/**
 * A canvas with two axes that is drawn again when its size or the theme changes.
 *
 * A subclass implements `axes()` (ranges and names), `drawInside(context)`, where `xAt` and `yAt` convert
 * values to pixels, and `writeLegend()`.
 */
export class Drawing {
  constructor() {
    this.canvas = el("canvas", { role: "img", class: "ddp-drawing-canvas" });
    this.legend = el("p", { class: "ddp-legend" });
    this.element = el("div", { class: "ddp-drawing" }, this.canvas, this.legend);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    const end = onThemeChange(() => {
      if (!this.canvas.isConnected) end();
      else if (this.content) {
        this.writeLegend();
        this.draw();
      }
    });
  }

  show(content) {
    const isFirst = !this.content;
    this.content = content;
    if (isFirst) this.writeLegend();
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!this.content || width === 0 || height === 0) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.text = textSize();
    const room = this.text / 12;
    this.left = PADDING.left * room;
    this.right = width - PADDING.right * room;
    this.top = PADDING.top * room;
    this.bottom = height - PADDING.bottom * room;
    const { xRange, yRange, xName, yName } = this.axes();
    this.xAt = (x) => this.left + ((x - xRange[0]) / (xRange[1] - xRange[0])) * (this.right - this.left);
    this.yAt = (y) => this.bottom - ((y - yRange[0]) / (yRange[1] - yRange[0])) * (this.bottom - this.top);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.right - this.left, this.bottom - this.top);
    context.clip();
    this.drawInside(context);
    context.restore();
    this.drawAxes(context, xRange, yRange, xName, yName);
  }

  drawAxes(context, xRange, yRange, xName, yName) {
    const { text, axis } = chartColors();
    context.strokeStyle = axis;
    context.lineWidth = 1;
    context.strokeRect(
      this.left + 0.5,
      this.top + 0.5,
      this.right - this.left - 1,
      this.bottom - this.top - 1,
    );
    context.fillStyle = text;
    context.font = `${this.text}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const x of ticks(xRange)) context.fillText(number(x), this.xAt(x), this.bottom + 4);
    context.fillText(xName, (this.left + this.right) / 2, this.bottom + 4 + 1.25 * this.text);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const y of ticks(yRange)) context.fillText(number(y), this.left - 5, this.yAt(y));
    context.save();
    context.translate(0.75 * this.text, (this.top + this.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(yName, 0, 0);
    context.restore();
  }
}

/** Three to seven round numbers within a range. */
function ticks([low, high]) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(low / step);
  const last = Math.floor(high / step);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) =>
    Number(((first + index) * step).toPrecision(12)),
  );
}

/** Sets the context's path to a shape. */
function trace(context, shape, x, y, radius) {
  context.beginPath();
  shape.forEach(([dx, dy], index) => {
    const place = [x + dx * radius, y + dy * radius];
    if (index === 0) context.moveTo(...place);
    else context.lineTo(...place);
  });
  context.closePath();
}

/** Draws a point of the n-th class. */
export function drawPoint(context, index, [x, y], radius, outline) {
  trace(context, SHAPES[index % SHAPES.length], x, y, radius);
  context.fillStyle = color(index);
  context.fill();
  context.strokeStyle = outline;
  context.lineWidth = 1;
  context.stroke();
}

/** Returns a legend canvas of 32 × 32 pixels with a drawing. */
export function legendMark(draw) {
  const canvas = el("canvas", { class: "ddp-legend-mark", width: 32, height: 32, "aria-hidden": true });
  draw(canvas.getContext("2d"));
  return canvas;
}
