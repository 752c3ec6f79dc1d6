import assert from "node:assert/strict";

import { refine, Traces, valueAt } from "../../../assets/js/charts/traces.js";

const snapshot = (traces) => ({ type: "snapshot", traces });
const delta = (traces) => ({ type: "delta", traces });

Deno.test("a snapshot replaces all traces and names those that went too", () => {
  const traces = new Traces();
  traces.apply(snapshot({ old: { x: [1], y: [1] } }));
  assert.deepEqual([...traces.apply(snapshot({ loss: { x: [1], y: [2] } }))].toSorted(), ["loss", "old"]);
  assert.deepEqual(traces.get("old"), { x: [], y: [] });
});

Deno.test("a delta extends a trace; one over the same places takes them from the other", () => {
  const traces = new Traces();
  traces.apply(snapshot({ loss: { x: [1], y: [5] } }));
  const changed = traces.apply(
    delta({ loss: { x: [2, 3], y: [4, 3] }, smooth: { as: "loss", y: [4.5, 4] } }),
  );
  assert.deepEqual([...changed], ["loss", "smooth"]);
  assert.deepEqual(traces.get("loss"), { x: [1, 2, 3], y: [5, 4, 3] });
  assert.deepEqual(traces.get("smooth"), { x: [2, 3], y: [4.5, 4] });
});

Deno.test("traces of ranks come in the order of the ranks, not of the letters", () => {
  const traces = new Traces();
  const none = { x: [], y: [] };
  traces.apply(snapshot({ "memory:10": none, "memory:2": none, loss: none }));
  assert.deepEqual(traces.named("memory:"), ["memory:2", "memory:10"]);
});

Deno.test("a snapshot is due after four thousand points, not before", () => {
  const traces = new Traces();
  const places = (num) => Array.from({ length: num }, (_, index) => index);
  traces.apply(snapshot({ loss: { x: places(4000), y: places(4000) } }));
  assert.equal(traces.isTooLong(), false);
  traces.apply(delta({ loss: { x: [4000], y: [1] } }));
  assert.equal(traces.isTooLong(), true);
});

Deno.test("the value at a place is that of the nearest point", () => {
  const trace = { x: [0, 10, 20], y: [1, 2, 3] };
  const values = [-5, 4, 6, 14, 16, 99].map((x) => valueAt(trace, x));
  assert.deepEqual(values, [1, 1, 2, 2, 3, 3]);
  assert.equal(valueAt({ x: [], y: [] }, 1), null);
  assert.equal(valueAt({ x: [0, 1], y: [7, null] }, 1), 7);
});

Deno.test("finer points take the place of the coarse ones in their range only", () => {
  const coarse = { x: [0, 10, 20, 30], y: [0, 1, 2, 3] };
  const fine = { x: [10, 15, 20], y: [1, 1.5, 2] };
  assert.deepEqual(refine(coarse, fine), { x: [0, 10, 15, 20, 30], y: [0, 1, 1.5, 2, 3] });
  assert.equal(refine(coarse, null), coarse);
  assert.equal(refine(coarse, { x: [], y: [] }), coarse);
});
