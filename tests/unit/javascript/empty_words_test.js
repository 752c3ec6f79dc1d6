import assert from "node:assert/strict";

import {
  firstEvaluationText,
  lossText,
  nextEvaluation,
  stepText,
} from "../../../assets/js/run/charts/figures.js";
import { withoutVerdict } from "../../../assets/js/run/insights.js";

// 1,000 samples in batches of 96 are 11 steps per epoch.
const HEAD = {
  state: "running",
  doing: null,
  step: 4,
  num_steps: 110,
  loss: 2.3,
  global_batch: 96,
  num_train: 1000,
  pace: { step_time_s: 2 },
  metrics: {},
};
const STARTING = { ...HEAD, state: "starting", step: 0, pace: null, loss: null };
const NORM = { name: "gradient norm", empty: "Appears with the first steps." };

Deno.test("the next evaluation is at the end of an epoch, at a step, or at the end of the run", () => {
  assert.deepEqual(nextEvaluation(HEAD, null), { step: 11, text: "after epoch 1" });
  assert.deepEqual(nextEvaluation(HEAD, 50), { step: 50, text: "at step 50" });
  const short = { ...HEAD, num_steps: 6 };
  assert.deepEqual(nextEvaluation(short, null), { step: 6, text: "at the end of the run, at step 6" });
});

Deno.test("the first evaluation's time is said as soon as a step has been measured", () => {
  for (const [more, every, words] of [
    [STARTING, null, "First evaluation after epoch 1."],
    [HEAD, null, "First evaluation after epoch 1, in about 14 s."],
    [HEAD, 50, "First evaluation at step 50, in about 1 min 30 s."],
    [{ ...HEAD, step: 10 }, null, "First evaluation after epoch 1, in a moment."],
    [{ ...HEAD, doing: "evaluating" }, null, "The first evaluation is under way."],
  ]) {
    assert.equal(firstEvaluationText(more, every), words);
  }
});

Deno.test("a chart that stays empty says why", () => {
  const nan = { ...HEAD, loss: null };
  const ended = { ...HEAD, state: "stopped" };
  assert.equal(firstEvaluationText(ended, null), "The run ended before its first evaluation.");
  assert.equal(
    firstEvaluationText({ ...nan, metrics: { rmse: null } }, null),
    "Nothing to draw: the validation RMSE is NaN (not a number).",
  );
  assert.match(stepText(nan, NORM), /loss is NaN \(not a number\), and the gradient norm with it/);
  assert.equal(stepText(ended, NORM), "This run has not recorded its gradient norm.");
  assert.equal(stepText({ ...ended, step: 0 }, NORM), "The run ended before its first step.");
  assert.match(lossText(nan), /NaN \(not a number\) from the first step on/);
  assert.equal(lossText(STARTING), "The training loss appears with the first steps.");
});

Deno.test("a run without a verdict says why, and a finished one not that it did not finish", () => {
  assert.equal(withoutVerdict("running").title, "Is it learning?");
  assert.equal(withoutVerdict("failed").reason, "The run did not finish.");
  assert.equal(withoutVerdict("finished").reason, "It made no optimizer step.");
});
