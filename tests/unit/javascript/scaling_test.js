import assert from "node:assert/strict";

import { asked, placeOf, spanOn } from "../../../assets/js/runs/compare_figure.js";
import { samplesAt, scaling, speedUp } from "../../../assets/js/runs/scaling.js";

import cases from "../speed_up_cases.json" with { type: "json" };

const run = (num_ranks, step_time_s, global_batch = 100) => ({
  num_ranks,
  global_batch,
  num_train: 1050,
  pace: { samples_per_s: global_batch / step_time_s, step_time_s, mean_step_time_s: 1 },
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

Deno.test("a speed-up is what the lessons and the lab report take it for", () => {
  for (const { name, run: one, base, speed_up } of cases) {
    assert.equal(speedUp({ ...run(2, 1), pace: one }, { ...run(1, 1), pace: base }), speed_up, name);
  }
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

Deno.test("runs are smoothed over as much of the axis, whatever their steps are", () => {
  const heads = [run(1, 0.02, 32), null, run(2, 0.05, 64)];
  assert.equal(spanOn("step", 30, heads), 30);
  assert.equal(spanOn("samples", 30, heads), 1000); // of 30 × 64 = 1,920
  assert.equal(spanOn("epochs", 30, heads), 1000);
  assert.equal(spanOn("time", 30, heads), 1); // of 30 × 0.05 s = 1.5 s
  assert.equal(spanOn("samples", 30, [null]), 0);
  assert.equal(spanOn("time", 0, heads), 0);
  const look = (axis, smoothing) => asked({ axis, smoothing });
  assert.deepEqual(look("step", 30), {
    axis: "step",
    smoothing: 30,
    smooth_over: "step",
    smooth_throughput: true,
  });
  assert.deepEqual(look("samples", 500), {
    axis: "step",
    smoothing: 500,
    smooth_over: "samples",
    smooth_throughput: true,
  });
  assert.deepEqual(look("epochs", 500), {
    axis: "step",
    smoothing: 500,
    smooth_over: "samples",
    smooth_throughput: true,
  });
  assert.deepEqual(look("time", 2), {
    axis: "time",
    smoothing: 2,
    smooth_over: "time",
    smooth_throughput: true,
  });
});
