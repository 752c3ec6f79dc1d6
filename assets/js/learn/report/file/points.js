// The points of a report's curves, read from what is drawn.

/** @typedef {[number, number]} Point */

/**
 * The points of a path of pieces, each `M` and its first point, then `l` and the steps from one to the next.
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
 * The point whose place is nearest; points are in the order of their places.
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
 * The lowest and the highest of the points between two places; null where there is none.
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
