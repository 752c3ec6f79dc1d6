// @ts-nocheck: subclasses of Drawing add members that the type checker does not know.
// Drawn samples: the decision regions of a classifier, and the curve of a regression.

import { el } from "../../shared/dom.js";
import { count } from "../../shared/format.js";
import { Drawing, drawPoint, legendMark } from "./axes.js";
import { chartColors, color } from "../../shared/theme.js";

const LETTERS = "ABCDEFGH";
const LETTER_EVERY = 6; // cells of the plane between two letters

const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

export class SurfaceView extends Drawing {
  update(content, step) {
    const points = bytes(content.points);
    const predictions = bytes(content.predictions);
    this.points = Array.from({ length: points.length / 3 }, (_, index) => {
      const [x, y, label] = points.subarray(index * 3, index * 3 + 3);
      return { x: x / 255, y: y / 255, label };
    });
    this.show({ ...content, predictions, confidence: bytes(content.confidence) });
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
