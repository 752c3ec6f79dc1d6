// The numbers of charts that are drawn without Plotly: ticks, labels, and the points of a path.

import { count, number, percent } from "../shared/format.js";

// Must equal `ddp_gui/learn/report/charts.py`.
const FACTORS = [1, 2, 5, 10];

/**
 * Ticks with their distance to the next one; the distance is 0 on a logarithmic axis.
 * @param {number} low a logarithm if the axis is logarithmic
 * @param {number} high like `low`
 * @param {number} most
 * @param {boolean} isLogarithmic
 * @returns {{ place: number, step: number }[]}
 */
export function ticks(low, high, most, isLogarithmic) {
  // A logarithmic axis of less than about one decade gets linear ticks.
  if (isLogarithmic && high - low > 0.7) return powers(low, high, most);
  const wanted = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = (FACTORS.find((factor) => factor * power >= wanted * (1 - 1e-9)) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => ({
    place: (first + index) * step,
    step,
  }));
}

/** @type {(low: number, high: number, most: number) => { place: number, step: number }[]} */
function powers(low, high, most) {
  const factors = high - low < most / 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((high - low) / most));
  const found = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += every) {
    found.push(...factors.map((factor) => ({ place: power + Math.log10(factor), step: 0 })));
  }
  return found.filter(({ place }) => place >= low && place <= high);
}

/**
 * A tick label with enough decimals to differ from its neighbours.
 * @param {number} value
 * @param {number} step
 * @param {boolean} isShare
 */
export function tickWords(value, step, isShare) {
  if (isShare) return percent(value, decimals(step * 100));
  if (Math.abs(value) >= 1e9 || (step > 0 && step < 1e-6)) return value.toExponential(2);
  const written = value.toFixed(decimals(step));
  const [, fraction = ""] = written.split(".");
  return Math.abs(value) < 1000 ? written : count(Math.trunc(Number(written))) + (fraction && `.${fraction}`);
}

/** @param {number} step */
function decimals(step) {
  return step > 0 ? Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))) : 0;
}

/**
 * A value as hover text: four significant digits.
 * @param {number} value
 * @param {boolean} isShare
 */
export function readWords(value, isShare) {
  return isShare ? percent(value, 2) : number(value);
}

// The points of a report's curves, read from their SVG paths.

/** @typedef {[number, number]} Point */

/**
 * Parses a path of pieces: `M` with the first point, then `l` with relative steps.
 * @param {string} drawn
 * @returns {Point[]}
 */
export function pointsOf(drawn) {
  /** @type {Point[]} */
  const points = [];
  for (const piece of drawn.split("M").filter(Boolean)) {
    const numbers = (piece.match(/-?\d+/g) ?? []).map(Number);
    let [x, y] = numbers;
    points.push([x, y]);
    for (let index = 2; index + 1 < numbers.length; index += 2) {
      x += numbers[index];
      y += numbers[index + 1];
      points.push([x, y]);
    }
  }
  return points;
}

/**
 * The point nearest to `x`; points must be sorted by x.
 * @param {Point[]} points
 * @param {number} x
 * @returns {Point | undefined}
 */
export function nearestPoint(points, x) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  const [before, after] = [points[low - 1], points[low]];
  if (!before || !after) return before ?? after;
  return x - before[0] < after[0] - x ? before : after;
}

/**
 * The minimum and the maximum of the points between two x values; null without points.
 * @param {Point[][]} curves
 * @param {number} from
 * @param {number} to
 * @returns {Point | null}
 */
export function rangeOf(curves, from, to) {
  const seen = curves.flatMap((points) => points.filter(([x]) => x >= from && x <= to).map(([, y]) => y));
  if (seen.length === 0) return null;
  return [
    seen.reduce((least, y) => Math.min(least, y), Infinity),
    seen.reduce((most, y) => Math.max(most, y), -Infinity),
  ];
}

/**
 * The path through points in pixels; a point without a height leaves a gap.
 * @param {(number | null)[][]} points
 */
export function pathOf(points) {
  let [path, command] = ["", "M"];
  for (const [x, y] of points) {
    if (x !== null && y !== null) path += `${command}${x.toFixed(1)},${y.toFixed(1)}`;
    command = y === null ? "M" : "L";
  }
  return path;
}
