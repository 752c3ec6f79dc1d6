// The numbers of charts that are drawn without Plotly: ticks, labels, and the points of a path.

import { count } from "../shared/format.js";

const FACTORS = [1, 2, 5, 10];

/**
 * Ticks with their distance to the next one.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @returns {{ place: number, step: number }[]}
 */
export function ticks(low, high, most) {
  const idealStep = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(idealStep));
  const step = (FACTORS.find((factor) => factor * power >= idealStep * (1 - 1e-9)) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => ({
    place: (first + index) * step,
    step,
  }));
}

/**
 * A tick label with enough decimals to differ from its neighbours.
 * @param {number} value
 * @param {number} step
 */
export function tickText(value, step) {
  if (Math.abs(value) >= 1e9 || step < 1e-6) return value.toExponential(2);
  const written = value.toFixed(decimals(step));
  const [, fraction = ""] = written.split(".");
  return Math.abs(value) < 1000 ? written : count(Math.trunc(Number(written))) + (fraction && `.${fraction}`);
}

/** @param {number} step */
function decimals(step) {
  return Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
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
