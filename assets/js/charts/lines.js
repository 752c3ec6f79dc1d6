// Lets the lines of a plot grow without drawing the plot anew.
//
// A full `Plotly.react` costs about 15 ms whatever has changed. What came since is drawn by a path of our own at
// the end of each line: only the small piece of the page that it covers is painted again, and of a long path only
// its last part is written. Axes, legend, marks and what is said under the pointer wait for the next full drawing.

const TAIL = "ddp-tail";
const TAIL_POINTS = 150;

/** Everything of a figure but the points of its lines: while it stays the same, only the lines grow. */
export function lineParts({ data, layout, title, revision, end }) {
  const traces = data.map((trace) => [
    trace.name,
    trace.mode,
    trace.line,
    trace.mode === "lines" ? null : trace.x.length,
  ]);
  return JSON.stringify([traces, layout, title, revision, end]);
}

/** Plotly has drawn, also because of a zoom: takes our paths away and returns how many points it drew of each line. */
export function noteDrawn(plot) {
  for (const tail of plot.querySelectorAll(`.${TAIL}`)) tail.remove();
  return plot.calcdata.map((points) => points.length);
}

/**
 * Draws what has come since `drawn` was noted; false when that would not show it rightly: a point lies outside
 * the axes, or Plotly has not drawn a line yet.
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
    // Whoever asks the plot for its points is told those that are drawn.
    Object.assign(plot.data[index], { x: trace.x, y: trace.y });
  }
  return true;
}

/**
 * The path that goes on where a line ends, looking as the line does; `data-from` is the index of its first point.
 * One that has become long stays as it is, and another one goes on from there.
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

/** Whether the newest points, those since the last full drawing, lie between the axes' ends. */
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
