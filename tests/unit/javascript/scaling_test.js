import assert from "node:assert/strict";

import { meanThroughput, placeOf, samplesAt, scaling } from "../../../assets/js/runs/compare/scaling.js";

const run = (num_ranks, mean_step_time_s, global_batch = 100) => ({
  num_ranks,
  global_batch,
  num_train: 1050,
  pace: { samples_per_s: 1, step_time_s: 1, mean_step_time_s },
});
const RANKS = [{ field: "nproc_per_node" }];

Deno.test("the last step of an epoch has fewer samples", () => {
  assert.equal(samplesAt(run(1, 1), 10), 1000);
  assert.equal(samplesAt(run(1, 1), 11), 1050);
  assert.equal(samplesAt(run(1, 1), 12), 1150);
  assert.equal(samplesAt({ ...run(1, 1), num_train: null }, 12), null);
});

Deno.test("a step has its place in samples and in epochs", () => {
  assert.equal(placeOf(run(1, 1), 11, "samples"), 1050);
  assert.equal(placeOf(run(1, 1), 22, "epochs"), 2);
});

Deno.test("throughput is the mean over all whole steps", () => {
  assert.equal(meanThroughput(run(1, 0.5)), 200);
  assert.equal(meanThroughput({ ...run(1, 0.5), pace: null }), null);
});

Deno.test("speed-up and efficiency are those over the run with the fewest ranks", () => {
  const [four, one] = scaling([run(4, 0.5), run(1, 1.5)], RANKS) ?? [];
  assert.deepEqual(one, { speedUp: 1, efficiency: 1 });
  assert.equal(four.speedUp, 3);
  assert.equal(four.efficiency, 0.75);
});

Deno.test("the batch of a rank may differ with the ranks, the rest may not", () => {
  assert.notEqual(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "batch_size" }]), null);
  assert.equal(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "model" }]), null);
  assert.notEqual(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "time_limit" }]), null);
  assert.equal(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "gpu_type" }]), null);
  assert.equal(scaling([run(1, 1), run(1, 1)], [{ field: "seed" }]), null);
  assert.equal(scaling([run(1, 1), { ...run(2, 1), pace: null }], RANKS), null);
});
