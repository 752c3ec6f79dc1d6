// The median of drawn curves.

/**
 * The median at each point; empty without curves.
 * @param {number[][]} curves
 */
export function medians(curves) {
  if (curves.length === 0) return [];
  return curves[0].map((_, index) => {
    const values = curves.map((curve) => curve[index]).toSorted((one, other) => one - other);
    const half = values.length / 2;
    return Number.isInteger(half) ? (values[half - 1] + values[half]) / 2 : values[Math.floor(half)];
  });
}
