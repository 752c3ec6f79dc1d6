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
export function nearestTo(points, x) {
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
