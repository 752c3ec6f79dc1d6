import assert from "node:assert/strict";

import { ticks, tickText } from "../../../assets/js/charts/plot.js";
import { refine, Traces, valueAt } from "../../../assets/js/charts/traces.js";

const snapshot = (traces) => ({ type: "snapshot", traces });
const delta = (traces) => ({ type: "delta", traces });

Deno.test("a snapshot replaces all traces, and a delta extends one or takes the places of another", () => {
  const traces = new Traces();
  traces.apply(snapshot({ old: { x: [1], y: [1] } }));
  const replaced = traces.apply(snapshot({ loss: { x: [1], y: [5] } }));
  assert.deepEqual([...replaced].toSorted(), ["loss", "old"]);
  assert.deepEqual(traces.get("old"), { x: [], y: [] });
  const changed = traces.apply(
    delta({ loss: { x: [2, 3], y: [4, 3] }, smooth: { as: "loss", y: [4.5, 4] } }),
  );
  assert.deepEqual([...changed], ["loss", "smooth"]);
  assert.deepEqual(traces.get("loss"), { x: [1, 2, 3], y: [5, 4, 3] });
  assert.deepEqual(traces.get("smooth"), { x: [2, 3], y: [4.5, 4] });
});

Deno.test("traces of ranks come in the order of the ranks, and a snapshot is due after 4,000 points", () => {
  const traces = new Traces();
  const none = { x: [], y: [] };
  const places = Array.from({ length: 4000 }, (_, index) => index);
  traces.apply(snapshot({ "memory:10": none, "memory:2": none, loss: { x: places, y: places } }));
  assert.deepEqual(traces.named("memory:"), ["memory:2", "memory:10"]);
  assert.equal(traces.isTooLong(), false);
  traces.apply(delta({ loss: { x: [4000], y: [1] } }));
  assert.equal(traces.isTooLong(), true);
});

Deno.test("the value at a place is that of the nearest point, and finer points replace coarse ones", () => {
  const trace = { x: [0, 10, 20, 30], y: [0, 1, 2, 3] };
  assert.deepEqual(
    [-5, 4, 6, 99].map((x) => valueAt(trace, x)),
    [0, 0, 1, 3],
  );
  assert.equal(valueAt({ x: [], y: [] }, 1), null);
  const fine = { x: [10, 15, 20], y: [1, 1.5, 2] };
  assert.deepEqual(refine(trace, fine), { x: [0, 10, 15, 20, 30], y: [0, 1, 1.5, 2, 3] });
  assert.equal(refine(trace, null), trace);
});

Deno.test("ticks are round, and their labels as precise as they must be", () => {
  const labels = (low, high) => ticks(low, high, 5).map(({ place, step }) => tickText(place, step));
  assert.deepEqual(labels(0, 100), ["0", "20", "40", "60", "80", "100"]);
  assert.deepEqual(labels(1234, 1236), ["1,234.0", "1,234.5", "1,235.0", "1,235.5", "1,236.0"]);
});
