// @ts-nocheck: subclasses of Drawing add members that the type checker does not know.
// Drawn samples: the decision regions of a classifier, and the curve of a regression, with their axes.

import { textSize } from "../../charts/style.js";
import { el, bytesOf } from "../../shared/dom.js";
import { count, number } from "../../shared/format.js";
import { chartColors, color, onThemeChange } from "../../shared/theme.js";
import { ticks } from "../../charts/plot.js";

// For a text size of 12 pixels; scaled with the text.
const PADDING = { left: 46, right: 10, top: 8, bottom: 34 };

// Shapes of radius 1 around (0, 0), one per class, so that colour is not the only difference.
const PLUS = "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z";
const SHAPES = [
  { path: "M0-.9A.9.9 0 1 1 0 .9A.9.9 0 1 1 0-.9Z" },
  { path: "M-.85-.85H.85V.85H-.85Z" },
  { path: "M0-1.1 1 .8H-1Z" },
  { path: "M0-1.25.95 0 0 1.25-.95 0Z" },
  { path: PLUS },
  { path: "M0 1.1 1-.8H-1Z" },
  { path: "M0-1.1 1.046-.34.647.89H-.647L-1.046-.34Z" },
  { path: PLUS, turned: 45 },
];

/**
 * A canvas with two axes that is drawn again when its size or the theme changes.
 *
 * A subclass implements `axes()` (ranges and names), `drawInside(context)`, where `xAt` and `yAt` convert
 * values to pixels, and `writeLegend()`.
 */
class Drawing {
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
    for (const { place } of ticks(...xRange, 4, false)) {
      context.fillText(number(place), this.xAt(place), this.bottom + 4);
    }
    context.fillText(xName, (this.left + this.right) / 2, this.bottom + 4 + 1.25 * this.text);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const { place } of ticks(...yRange, 4, false)) {
      context.fillText(number(place), this.left - 5, this.yAt(place));
    }
    context.save();
    context.translate(0.75 * this.text, (this.top + this.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(yName, 0, 0);
    context.restore();
  }
}

/** The shape of the n-th class at a place. */
function shapeAt(index, x, y, radius) {
  const { path, turned = 0 } = SHAPES[index % SHAPES.length];
  const shape = new Path2D();
  shape.addPath(new Path2D(path), new DOMMatrix([radius, 0, 0, radius, x, y]).rotate(turned));
  return shape;
}

/** Draws a point of the n-th class. */
function drawPoint(context, index, [x, y], radius, outline) {
  const shape = shapeAt(index, x, y, radius);
  context.fillStyle = color(index);
  context.fill(shape);
  context.strokeStyle = outline;
  context.lineWidth = 1;
  context.stroke(shape);
}

/** Returns a legend canvas of 32 × 32 pixels with a drawing. */
function legendMark(draw) {
  const canvas = el("canvas", { class: "ddp-legend-mark", width: 32, height: 32, "aria-hidden": true });
  draw(canvas.getContext("2d"));
  return canvas;
}

const LETTERS = "ABCDEFGH";
const LETTER_EVERY = 6; // cells of the plane between two letters

export class SurfaceView extends Drawing {
  update(content, step) {
    const points = bytesOf(content.points);
    const predictions = bytesOf(content.predictions);
    this.points = Array.from({ length: points.length / 3 }, (_, index) => {
      const [x, y, label] = points.subarray(index * 3, index * 3 + 3);
      return { x: x / 255, y: y / 255, label };
    });
    this.show({ ...content, predictions, confidence: bytesOf(content.confidence) });
    const numRight = this.points.filter((point) => this.saidAt(point.x, point.y) === point.label).length;
    const of = `${numRight} of ${this.points.length}`;
    this.canvas.setAttribute(
      "aria-label",
      `Map of the model's answers; ${of} validation points lie on their own class.`,
    );
    return `The decision regions of the model after step ${count(step)}: letters and colours are its predictions, paler where it is less sure. ${of} validation points lie in the region of their own class.`;
  }

  saidAt(x, y) {
    const { size, predictions } = this.content;
    const cell = (share) => Math.min(size - 1, Math.floor(share * size));
    return predictions[cell(1 - y) * size + cell(x)];
  }

  axes() {
    const { x_range: xRange, y_range: yRange, feature_names: names } = this.content;
    return { xRange, yRange, xName: names[0] ?? "first column", yName: names[1] ?? "second column" };
  }

  writeLegend() {
    const entries = this.content.class_names.map((name, index) => {
      const mark = legendMark((context) => drawPoint(context, index, [16, 16], 11, chartColors().text));
      return el("span", {}, mark, `${LETTERS[index]} ${name}`);
    });
    this.legend.replaceChildren(...entries);
  }

  drawInside(context) {
    const { size } = this.content;
    const width = this.right - this.left;
    const height = this.bottom - this.top;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.ground(), this.left, this.top, width, height);
    const { text, hover } = chartColors();
    context.fillStyle = text;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = LETTER_EVERY / 2; row < size; row += LETTER_EVERY) {
      for (let column = LETTER_EVERY / 2; column < size; column += LETTER_EVERY) {
        const letter = LETTERS[this.content.predictions[row * size + column]];
        context.fillText(
          letter,
          this.left + ((column + 0.5) / size) * width,
          this.top + ((row + 0.5) / size) * height,
        );
      }
    }
    for (const { x, y, label } of this.points) {
      drawPoint(context, label, [this.left + x * width, this.bottom - y * height], 4.5, hover);
    }
  }

  /** The predictions as an image with one pixel per cell. */
  ground() {
    const { size, predictions, confidence, class_names: names } = this.content;
    const canvas = el("canvas", { width: size, height: size });
    const context = canvas.getContext("2d");
    const picture = context.createImageData(size, size);
    const colours = names.map((_, index) =>
      [1, 3, 5].map((start) => parseInt(color(index).slice(start, start + 2), 16)),
    );
    const chance = 255 / names.length; // the lowest possible confidence
    predictions.forEach((label, index) => {
      const sure = Math.max(0, (confidence[index] - chance) / (255 - chance));
      picture.data.set([...colours[label], 30 + 110 * sure], index * 4);
    });
    context.putImageData(picture, 0, 0);
    return canvas;
  }
}

export class CurveView extends Drawing {
  update(content, step) {
    this.show(content);
    const name = content.feature_names[0] ?? "x";
    this.canvas.setAttribute("aria-label", `The predicted number over ${name}, and validation points.`);
    return `The curve the model has learnt after step ${count(step)}, over points of the validation split.`;
  }

  axes() {
    const { x, point_y: pointY, feature_names: names } = this.content;
    const low = Math.min(...pointY);
    const high = Math.max(...pointY);
    const margin = (high - low || 1) * 0.12;
    return {
      xRange: [x[0], x.at(-1)],
      yRange: [low - margin, high + margin],
      xName: names[0] ?? "x",
      yName: "y",
    };
  }

  writeLegend() {
    const point = legendMark((context) => drawPoint(context, 1, [16, 16], 9, chartColors().hover));
    const line = legendMark((context) => {
      context.fillStyle = color(0);
      context.fillRect(0, 13, 32, 6);
    });
    this.legend.replaceChildren(
      el("span", {}, line, "what the model predicts"),
      el("span", {}, point, "validation points"),
    );
  }

  drawInside(context) {
    const { x, y, point_x: pointX, point_y: pointY } = this.content;
    const { hover } = chartColors();
    pointX.forEach((value, index) =>
      drawPoint(context, 1, [this.xAt(value), this.yAt(pointY[index])], 3.5, hover),
    );
    context.beginPath();
    let isDrawing = false; // a NaN leaves a gap
    x.forEach((value, index) => {
      if (Number.isFinite(y[index])) {
        context[isDrawing ? "lineTo" : "moveTo"](this.xAt(value), this.yAt(y[index]));
      }
      isDrawing = Number.isFinite(y[index]);
    });
    context.lineJoin = "round";
    for (const [width, colour] of [
      [7, hover],
      [3.5, color(0)],
    ]) {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.stroke();
    }
  }
}
