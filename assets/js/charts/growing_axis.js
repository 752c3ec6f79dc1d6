// Chooses the end of a growing axis: a little ahead of the curves, so that it stays constant for a while. A
// new end requires a full drawing of each chart, which costs thirty times as much as a longer line.

const STABLE_FOR_S = 8;
// The space ahead of a curve, as a fraction of its length.
const MIN_AHEAD = 1 / 8;
const MAX_AHEAD = 1;
// Tolerance for positions that differ slightly between curves.
const TOLERANCE = 1 / 64;

export class GrowingAxis {
  constructor() {
    this.end = 0;
    this.last = 0;
    this.movedAt_s = performance.now() / 1000;
  }

  /**
   * The axis end for curves whose latest position is `last`; unchanged if it still fits.
   * @param {number} last
   */
  endFor(last) {
    const suits = last <= this.end && this.end <= last * (1 + MAX_AHEAD + TOLERANCE);
    if (!suits) this.move(last);
    return this.end;
  }

  /**
   * @param {number} last
   */
  move(last) {
    const now_s = performance.now() / 1000;
    const pace = Math.max(0, last - this.last) / Math.max(now_s - this.movedAt_s, 0.001);
    const ahead = Math.min(Math.max(pace * STABLE_FOR_S, last * MIN_AHEAD), last * MAX_AHEAD);
    this.end = last + ahead;
    this.last = last;
    this.movedAt_s = now_s;
  }
}
