// The axes of charts: how many ticks and labels fit, and where a growing axis ends.

// How many ticks and labels fit into a chart of a given size.

// Thresholds in units of the text size: labels must leave most of the chart to the curves.
const NARROW_BELOW = 47;
const LOW_BELOW = 14;
const SHORT_LEGEND_BELOW = 20;
const LINES_PER_TICK = 1.6;
const LINES_PER_PLACE = 5.5; // "12,000" and a gap
const MAX_TICKS = 6;
const LETTER = 0.54;

/** @typedef {{ isNarrow: boolean, isLow: boolean, numPlaces: number, numTicks: number, titleLetters: number }} Room */

/**
 * What fits into a chart: whether its legend is short ("narrow", or too low for several rows), whether its
 * horizontal axis has no title, the number of ticks of each axis, and the number of letters of the vertical
 * title.
 * @param {number} width pixels
 * @param {number} height pixels
 * @param {number} size text size in pixels
 * @returns {Room}
 */
export function roomFor(width, height, size) {
  const isLow = height < LOW_BELOW * size;
  const axis = height - (isLow ? 4.5 : 6) * size;
  /** @type {(most: number) => number} */
  const fitting = (most) => Math.max(2, Math.min(MAX_TICKS, Math.floor(most)));
  return {
    isNarrow: width < NARROW_BELOW * size || height < SHORT_LEGEND_BELOW * size,
    isLow,
    numPlaces: fitting((width - 4 * size) / (LINES_PER_PLACE * size)),
    numTicks: fitting(axis / (LINES_PER_TICK * size)),
    titleLetters: Math.floor(height / (LETTER * size)),
  };
}

/**
 * Removes axis titles that do not fit; the heading of the chart names its content as well.
 * @param {Record<string, any>} layout
 * @param {Room} room
 */
export function fitted(layout, room) {
  const { xaxis, yaxis, margin } = layout;
  const isTooLong = (yaxis.title?.text ?? "").length > room.titleLetters;
  const size = layout.font.size;
  return {
    ...layout,
    margin: room.isLow ? { ...margin, b: 2 * size, t: layout.showlegend ? margin.t : 0.8 * size } : margin,
    xaxis: { ...xaxis, nticks: room.numPlaces, ...(room.isLow ? { title: undefined } : {}) },
    yaxis: { ...yaxis, nticks: room.numTicks, ...(isTooLong ? { title: undefined } : {}) },
  };
}

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
