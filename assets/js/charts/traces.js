// The points of a run: replaced by a snapshot, extended by a delta.

/** @typedef {{ x: number[], y: (number | null)[] }} Trace */

const MAX_HELD = 4000;

export class Traces {
  constructor() {
    /** @type {Map<string, Trace>} */
    this.byName = new Map();
    // The axis and the smoothing they were requested with.
    this.view = "";
    /** @type {any} The run's current values at the time of the points, if the caller stores them. */
    this.head = null;
  }

  /**
   * Applies a payload; returns the names of the traces that changed.
   * @param {{ type: string, traces: Record<string, any> }} payload
   */
  apply(payload) {
    const changed = new Set(Object.keys(payload.traces));
    if (payload.type === "snapshot") {
      for (const name of this.byName.keys()) changed.add(name);
      this.byName = new Map(Object.entries(payload.traces));
      return changed;
    }
    for (const [name, news] of Object.entries(payload.traces)) {
      const trace = this.get(name);
      // Traces with the same x values transfer them once.
      trace.x.push(...(news.as ? payload.traces[news.as].x : news.x));
      trace.y.push(...news.y);
      this.byName.set(name, trace);
    }
    return changed;
  }

  /**
   * The points of a trace; empty if it does not exist yet.
   * @param {string} name
   */
  get(name) {
    return this.byName.get(name) ?? { x: [], y: [] };
  }

  /**
   * The names with a prefix, ordered by the rank number they end with.
   * @param {string} prefix
   */
  named(prefix) {
    return [...this.byName.keys()]
      .filter((name) => name.startsWith(prefix))
      .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  }

  /** True if a decimated snapshot is due. */
  isTooLong() {
    return [...this.byName.values()].some((trace) => trace.x.length > MAX_HELD);
  }
}

/**
 * The value of a trace at the position nearest to `x`; null if the trace is empty.
 * @param {Trace} trace
 * @param {number} x
 */
export function valueAt({ x: places, y }, x) {
  if (places.length === 0) return null;
  const after = Math.min(lowerBound(places, x), places.length - 1);
  const before = Math.max(0, after - 1);
  const [near, far] = x - places[before] < places[after] - x ? [before, after] : [after, before];
  return y[near] ?? y[far];
}

/**
 * Replaces a range of a trace by finer points.
 * @param {Trace} coarse
 * @param {Trace | null | undefined} fine
 */
export function refine(coarse, fine) {
  if (!fine || fine.x.length === 0) return coarse;
  const low = fine.x[0];
  const high = fine.x.at(-1) ?? low;
  const before = lowerBound(coarse.x, low);
  let after = lowerBound(coarse.x, high);
  while (after < coarse.x.length && coarse.x[after] <= high) after += 1;
  return {
    x: [...coarse.x.slice(0, before), ...fine.x, ...coarse.x.slice(after)],
    y: [...coarse.y.slice(0, before), ...fine.y, ...coarse.y.slice(after)],
  };
}

/**
 * @param {number[]} sorted
 * @param {number} value
 */
function lowerBound(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
