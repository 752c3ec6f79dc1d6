// Where the axis of curves that grow ends: a little ahead of them, so that it stands still for a while.
//
// A new end is a whole drawing of each chart, which costs thirty times what a longer line does.

const STANDS_STILL_S = 8;
// What of a long curve's length is added to it; of a short one as much again at most.
const LEAST_AHEAD = 1 / 8;
const MOST_AHEAD = 1;
// Lets the places of a curve be counted a little differently.
const HARDLY = 1 / 64;

export class GrowingAxis {
  constructor() {
    this.end = 0;
    this.last = 0;
    this.movedAt_s = performance.now() / 1000;
  }

  /**
   * The end for curves whose newest place is `last`; the same as before while that still suits them.
   * @param {number} last
   */
  endFor(last) {
    const suits = last <= this.end && this.end <= last * (1 + MOST_AHEAD + HARDLY);
    if (!suits) this.move(last);
    return this.end;
  }

  /**
   * @param {number} last
   */
  move(last) {
    const now_s = performance.now() / 1000;
    const pace = Math.max(0, last - this.last) / Math.max(now_s - this.movedAt_s, 0.001);
    const ahead = Math.min(Math.max(pace * STANDS_STILL_S, last * LEAST_AHEAD), last * MOST_AHEAD);
    this.end = last + ahead;
    this.last = last;
    this.movedAt_s = now_s;
  }
}
