import assert from "node:assert/strict";

import { paceInWords } from "../../../assets/js/run/header/progress.js";

const PACE = {
  step_time_s: 0.0285,
  samples_per_s: 128 / 0.0285,
  num_steps: 1260,
  mean_step_time_s: 0.032,
  is_whole_run: true,
};

Deno.test("an ended run's numbers are its median and its mean, and say so", () => {
  const { samples, step } = paceInWords({ state: "finished", step: 1260, pace: PACE });
  assert.deepEqual(samples, ["4,491", "all ranks, at the median step; mean 4,000"]);
  assert.deepEqual(step, ["28.5 ms", "median of 1,260 steps; mean 32.0 ms"]);
});

Deno.test("a running run's numbers are of its newest steps", () => {
  const pace = { ...PACE, is_whole_run: false, num_steps: 175 };
  const { samples, step } = paceInWords({ state: "running", step: 300, pace });
  assert.deepEqual(samples, ["4,491", "all ranks together"]);
  assert.deepEqual(step, ["28.5 ms", "mean of the latest 175 steps"]);
});

Deno.test("a run that ended after a few steps was too short to measure", () => {
  const { samples, step } = paceInWords({ state: "finished", step: 3, pace: null });
  assert.deepEqual(samples, ["–", "too short to measure"]);
  assert.deepEqual(step, ["–", "too short to measure"]);
  assert.deepEqual(paceInWords({ state: "stopped", step: 0, pace: null }).step[1], "too short to measure");
  assert.deepEqual(paceInWords({ state: "running", step: 3, pace: null }).step, [
    "–",
    "after the first steps",
  ]);
});
