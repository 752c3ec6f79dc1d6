import assert from "node:assert/strict";

import { divide, outlines, stepWords } from "../../../assets/js/run/ranks.js";

const STEP = {
  step_time_s: 1.0,
  data_time_s: 0.1,
  forward_time_s: 0.2,
  backward_time_s: 0.6,
  optimizer_time_s: 0.1,
  wait_time_s: 0.1,
};
const rounded = (parts) =>
  Object.fromEntries(Object.entries(parts).map(([name, seconds]) => [name, Number(seconds.toFixed(6))]));

Deno.test("the parts of a step add up to it, with the all-reduce apart where it was measured", () => {
  const parts = divide({ ...STEP, all_reduce_time_s: 0.3, hidden_time_s: 0.05 });
  assert.deepEqual(rounded(parts), {
    data: 0.1,
    forward: 0.2,
    backward: 0.35,
    reduce: 0.15,
    optimizer: 0.1,
    wait: 0.1,
  });
});

Deno.test("else it stays with backward, and without the passes all is computing", () => {
  assert.deepEqual(rounded(divide({ ...STEP, all_reduce_time_s: null })), {
    data: 0.1,
    forward: 0.2,
    mixed: 0.5,
    optimizer: 0.1,
    wait: 0.1,
  });
  const { step_time_s, data_time_s } = STEP;
  assert.deepEqual(rounded(divide({ step_time_s, data_time_s })), { data: 0.1, compute: 0.9 });
});

Deno.test("the areas of the history lie on each other, and the highest slice fills the height", () => {
  const drawn = outlines([
    { forward: 1, backward: 1 },
    { forward: 1, backward: 3 },
  ]);
  assert.deepEqual(Object.keys(drawn), ["forward", "backward"]);
  assert.equal(
    drawn.forward,
    "M0.0,27.00L200.0,27.00L200.0,27.00L400.0,27.00L400.0,36.00L200.0,36.00L200.0,36.00L0.0,36.00Z",
  );
  assert.equal(
    drawn.backward,
    "M0.0,18.00L200.0,18.00L200.0,0.00L400.0,0.00L400.0,27.00L200.0,27.00L200.0,27.00L0.0,27.00Z",
  );
});

Deno.test("a rank's numbers name their steps; few samples have no 95th percentile, and fewer no median", () => {
  const of = (number, p95_s) =>
    stepWords({ num_samples: number, first_step: 12, last_step: 1310, median_s: 0.01, p95_s });
  assert.equal(of(1, null), "1 sampled step: too few for a median");
  assert.equal(of(6, null), "median 10.0 ms of 6 sampled steps (12 to 1,310); too few for a 95th percentile");
  assert.equal(of(20, 0.02), "median 10.0 ms of 20 sampled steps (12 to 1,310); 95th percentile 20.0 ms");
});
