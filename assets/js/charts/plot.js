// The numbers of charts that are drawn without Plotly: ticks, labels, and the points of a path.

import { count, percent } from "../shared/format.js";

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
