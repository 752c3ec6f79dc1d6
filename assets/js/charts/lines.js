// Extends the lines of a plot without a full redraw.
//
// A full `Plotly.react` costs about 15 ms, regardless of what changed. New points are drawn as a path of our
// own at the end of each line: the browser repaints only the small area that it covers, and only the last
// part of a long path is rewritten. Axes, legend, markers and hover texts wait for the next full drawing.

const TAIL = "ddp-tail";
const TAIL_POINTS = 150;

/**
 * A key of everything in a figure except the points of its lines: if it is unchanged, only the lines grow.
 */
export function lineParts({ data, layout, title, revision, end }) {
  const traces = data.map((trace) => [
    trace.name,
    trace.mode,
    trace.line,
    trace.mode === "lines" ? null : trace.x.length,
  ]);
  return JSON.stringify([traces, layout, title, revision, end]);
}

/**
 * Called after Plotly has drawn (also after a zoom): removes our paths and returns the number of points drawn
 * per line.
 */
export function noteDrawn(plot) {
  for (const tail of plot.querySelectorAll(`.${TAIL}`)) tail.remove();
  return plot.calcdata.map((points) => points.length);
}

/**
 * Draws the points since `drawn`. Returns false if a full drawing is needed: a point is outside the axes, or
 * Plotly has not drawn a line yet.
 */
export function growLines(plot, data, drawn, isZoomed) {
  const { xaxis, yaxis } = plot._fullLayout ?? {};
  if (!xaxis || !yaxis) return false;
  const paths = pathsByTrace(plot);
  const ready = [];
  for (const [index, trace] of data.entries()) {
    if (trace.mode !== "lines" || plot._fullData[index]?.visible === "legendonly") continue;
    const path = paths.get(index);
    if (!path || trace.x.length < drawn[index] || (!isZoomed && !fits(trace, xaxis, yaxis))) return false;
    ready.push([path, trace, index]);
  }
  for (const [path, trace, index] of ready) {
    const tail = tailOf(path, Math.max(0, drawn[index] - 1), trace.x.length);
    tail.setAttribute("d", pathOf(trace, Number(tail.dataset.from), xaxis, yaxis));
    tail.dataset.to = trace.x.length - 1;
    // Code that reads the plot's points must see the drawn ones.
    Object.assign(plot.data[index], { x: trace.x, y: trace.y });
  }
  return true;
}

/**
 * Returns the path that continues a line in the same style; `data-from` is the index of its first point. A
 * long path is left unchanged and continued by a new one.
 */
function tailOf(path, from, length) {
  let last = path;
  const isTail = (element) => element?.classList.contains(TAIL);
  while (isTail(last.nextElementSibling)) last = last.nextElementSibling;
  if (last !== path && length - Number(last.dataset.from) <= TAIL_POINTS) return last;
  const tail = path.cloneNode(false);
  tail.setAttribute("class", TAIL);
  tail.dataset.from = last === path ? from : last.dataset.to;
  last.after(tail);
  return tail;
}

function pathsByTrace(plot) {
  const found = new Map();
  for (const group of plot.querySelectorAll(".scatterlayer > .trace")) {
    const index = group.__data__?.[0]?.trace?.index;
    const path = group.querySelector("path.js-line");
    if (index !== undefined && path) found.set(index, path);
  }
  return found;
}

/** True if the latest points are within the axis ranges. */
function fits({ x, y }, xaxis, yaxis) {
  const last = xaxis.r2c(xaxis.range[1]);
  const [low, high] = yaxis.range.map((value) => yaxis.r2c(value)).sort((a, b) => a - b);
  if (x.at(-1) > last) return false;
  for (let index = Math.max(0, y.length - 100); index < y.length; index += 1) {
    if (y[index] !== null && (y[index] > high || y[index] < low)) return false;
  }
  return true;
}

function pathOf({ x, y }, from, xaxis, yaxis) {
  const parts = [];
  let command = "M";
  for (let index = from; index < x.length; index += 1) {
    const value = y[index];
    if (value === null) {
      command = "M";
      continue;
    }
    parts.push(command, xaxis.c2p(x[index]).toFixed(1), ",", yaxis.c2p(value).toFixed(1));
    command = "L";
  }
  return parts.join("");
}
