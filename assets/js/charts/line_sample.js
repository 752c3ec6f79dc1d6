// A short sample of a chart's line, shown next to a name as its legend.

import { svg } from "../shared/dom.js";
import { line } from "../shared/theme.js";

/** @type {Record<string, string | null>} */
const DASHES = { solid: null, dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "14 5" };

/**
 * A sample of the n-th line.
 * @param {number} index
 */
export function lineSample(index) {
  const { color, dash } = line(index);
  const drawn = svg("line", {
    x1: 0,
    y1: 4,
    x2: 44,
    y2: 4,
    stroke: color,
    "stroke-width": 3,
    ...(DASHES[dash] ? { "stroke-dasharray": DASHES[dash] } : {}),
  });
  return svg("svg", { viewBox: "0 0 44 8", class: "ddp-line-sample", "aria-hidden": "true" }, drawn);
}
