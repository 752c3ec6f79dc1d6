// Lets the lines of a plot grow without drawing the plot anew.
//
// A full `Plotly.react` costs about 15 ms whatever has changed; a line is one SVG path, and writing that
// costs less than one. Axes, legend, marks and what is said under the pointer wait for the next full drawing.

/** Everything of a figure but the points of its lines: while it stays the same, only the lines grow. */
export function lineParts({ data, layout, title, revision, end }) {
  const traces = data.map((trace) => [trace.name, trace.mode, trace.line, trace.mode === "lines" ? null : trace.x.length]);
  return JSON.stringify([traces, layout, title, revision, end]);
}

/**
 * Writes the points of all lines into their paths; false when that would not show them rightly: a point
 * lies outside the axes, or Plotly has not drawn a line yet.
 */
export function writeLines(plot, data, isZoomed) {
  const { xaxis, yaxis } = plot._fullLayout ?? {};
  if (!xaxis || !yaxis) return false;
  const paths = pathsByTrace(plot);
  const ready = [];
  for (const [index, trace] of data.entries()) {
    if (trace.mode !== "lines" || plot._fullData[index]?.visible === "legendonly") continue;
    const path = paths.get(index);
    if (!path || (!isZoomed && !fits(trace, xaxis, yaxis))) return false;
    ready.push([path, trace, plot.data[index]]);
  }
  for (const [path, trace, held] of ready) {
    path.setAttribute("d", pathOf(trace, xaxis, yaxis));
    // Whoever asks the plot for its points is told those that are drawn.
    Object.assign(held, { x: trace.x, y: trace.y });
  }
  return true;
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

function pathOf({ x, y }, xaxis, yaxis) {
  const parts = [];
  let command = "M";
  for (let index = 0; index < x.length; index += 1) {
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
