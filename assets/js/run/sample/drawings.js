// Drawn samples: the decision regions of a classifier, and the curve of a regression.

import { Chart } from "../../charts/chart.js";
import { bytesOf, el, visible } from "../../shared/dom.js";
import { count } from "../../shared/format.js";
import { chartColors, color, line, onThemeChange } from "../../shared/theme.js";

/** A chart of the latest sample. */
class DrawnSample {
  /** `figure(content)` returns the Plotly figure, `caption(content, step)` its caption. */
  constructor(name, title, figure, caption) {
    this.caption = caption;
    this.content = null;
    this.chart = new Chart({ name, title, empty: "", figure: () => figure(this.content) });
    this.element = this.chart.element;
    this.endTheme = onThemeChange(() => this.chart.redraw());
  }

  /** Returns the caption. */
  update(content, step) {
    this.content = content;
    this.chart.invalidate();
    this.chart.drawDue();
    return this.caption(content, step);
  }

  close() {
    this.endTheme();
    this.chart.close();
  }
}

export const makeSurfaceView = () =>
  new DrawnSample("surface", "Decision regions", surfaceFigure, surfaceText);

export const makeCurveView = () => new DrawnSample("learnt-curve", "Learnt curve", curveFigure, curveText);

// One per class, so that colour is not the only difference.
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "pentagon", "x"];
const LETTERS = "ABCDEFGH";
const LETTER_EVERY = 6; // cells of the plane between two letters

/** A trace of points in the colour and with the symbol of the n-th class. */
function pointsOf(name, index, { x, y }, size) {
  const outline = { color: chartColors().hover, width: 1 };
  const marker = { color: color(index), symbol: SYMBOLS[index % SYMBOLS.length], size, line: outline };
  return { type: "scatter", mode: "markers", name, x, y, marker, cliponaxis: false };
}

/** The validation points, as bytes: both coordinates and the class. */
function pointsIn({ points }) {
  const bytes = bytesOf(points);
  return Array.from({ length: bytes.length / 3 }, (_, index) => bytes.subarray(index * 3, index * 3 + 3));
}

function surfaceText(content, step) {
  const { size } = content;
  const predictions = bytesOf(content.predictions);
  const cell = (byte) => Math.min(size - 1, Math.floor((byte / 255) * size));
  const points = pointsIn(content);
  const right = points.filter(([x, y, label]) => predictions[cell(255 - y) * size + cell(x)] === label);
  return `The decision regions of the model after step ${count(step)}: letters and colours are its predictions, paler where it is less sure. ${right.length} of ${points.length} validation points lie in the region of their own class.`;
}

function surfaceFigure(content) {
  const { size, x_range: xRange, y_range: yRange, feature_names: names, class_names: classes } = content;
  const at = ([low, high], share) => low + share * (high - low);
  const predictions = bytesOf(content.predictions);
  const points = pointsIn(content);
  const ofClass = (index) => {
    const own = points.filter(([, , label]) => label === index);
    return { x: own.map(([x]) => at(xRange, x / 255)), y: own.map(([, y]) => at(yRange, y / 255)) };
  };
  const places = Array.from({ length: Math.floor(size / LETTER_EVERY) }, (_, n) => (n + 0.5) * LETTER_EVERY);
  const cells = places.flatMap((row) => places.map((column) => [row, column]));
  const letters = {
    type: "scatter",
    mode: "text",
    showlegend: false,
    hoverinfo: "skip",
    x: cells.map(([, column]) => at(xRange, (column + 0.5) / size)),
    y: cells.map(([row]) => at(yRange, 1 - (row + 0.5) / size)),
    text: cells.map(([row, column]) => LETTERS[predictions[row * size + column]]),
  };
  const placement = { xref: "x", yref: "y", x: xRange[0], y: yRange[1], sizing: "stretch", layer: "below" };
  const sizes = { sizex: xRange[1] - xRange[0], sizey: yRange[1] - yRange[0] };
  return {
    data: [letters, ...classes.map((name, n) => pointsOf(`${LETTERS[n]} ${plain(name)}`, n, ofClass(n), 9))],
    layout: {
      showlegend: true,
      hovermode: "closest",
      images: [{ source: groundOf(content), ...placement, ...sizes }],
      xaxis: { range: xRange, title: { text: plain(names[0] ?? "first column") } },
      yaxis: { range: yRange, showgrid: false, title: { text: plain(names[1] ?? "second column") } },
    },
  };
}

/** A name without what Plotly would interpret as markup, and with invisible characters made visible. */
function plain(name) {
  return visible(name).replaceAll("<", "‹");
}

/** The predictions as the address of an image with one pixel per cell. */
function groundOf({ size, predictions, confidence, class_names: names }) {
  const canvas = el("canvas", { width: size, height: size });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(size, size);
  const colours = names.map((_, index) =>
    [1, 3, 5].map((start) => parseInt(color(index).slice(start, start + 2), 16)),
  );
  const chance = 255 / names.length; // the lowest possible confidence
  const sureness = bytesOf(confidence);
  bytesOf(predictions).forEach((label, index) => {
    const sure = Math.max(0, (sureness[index] - chance) / (255 - chance));
    picture.data.set([...colours[label], 30 + 110 * sure], index * 4);
  });
  context.putImageData(picture, 0, 0);
  return canvas.toDataURL();
}

function curveText(_content, step) {
  return `The curve the model has learnt after step ${count(step)}, over points of the validation split.`;
}

function curveFigure({ x, y, point_x: pointX, point_y: pointY, feature_names: names }) {
  const [low, high] = [Math.min(...pointY), Math.max(...pointY)];
  const margin = (high - low || 1) * 0.12;
  const learnt = {
    type: "scatter",
    mode: "lines",
    name: "what the model predicts",
    x,
    y,
    connectgaps: false,
  };
  return {
    data: [
      pointsOf("validation points", 1, { x: pointX, y: pointY }, 7),
      { ...learnt, line: { ...line(0), width: 3.5 } },
    ],
    layout: {
      showlegend: true,
      hovermode: "closest",
      xaxis: { range: [x[0], x.at(-1)], title: { text: plain(names[0] ?? "x") } },
      yaxis: { range: [low - margin, high + margin], title: { text: "y" } },
    },
  };
}
