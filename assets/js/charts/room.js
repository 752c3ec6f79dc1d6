// What fits into a chart of a size: ticks, titles, the words of its legend.

// In lines of text: what is written at a chart must leave most of it to the curves.
const NARROW = 47;
const LOW = 14;
const LINES_PER_TICK = 1.6;
const MOST_TICKS = 6;
const LETTER = 0.54;

/** @typedef {{ isNarrow: boolean, isLow: boolean, numTicks: number, titleLetters: number }} Room */

/**
 * What fits into a chart of a size: whether its legend is short, whether its horizontal axis goes without a title,
 * how many ticks the vertical one has, and how many letters its title.
 * @param {number} width in pixels
 * @param {number} height
 * @param {number} size of the text, in pixels
 * @returns {Room}
 */
export function roomFor(width, height, size) {
  const isLow = height < LOW * size;
  const axis = height - (isLow ? 4.5 : 6) * size;
  return {
    isNarrow: width < NARROW * size,
    isLow,
    numTicks: Math.max(2, Math.min(MOST_TICKS, Math.floor(axis / (LINES_PER_TICK * size)))),
    titleLetters: Math.floor(height / (LETTER * size)),
  };
}

/**
 * A whole layout without the titles for which there is no room: what a chart shows stands above it as well.
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
    xaxis: room.isLow ? { ...xaxis, title: undefined } : xaxis,
    yaxis: { ...yaxis, nticks: room.numTicks, ...(isTooLong ? { title: undefined } : {}) },
  };
}
