import assert from "node:assert/strict";

import { forwardingText, paceText } from "../../../assets/js/run/header/progress.js";
import { groupsOf, replicaSentence, replicaText } from "../../../assets/js/run/look_closer/fingerprints.js";
import { cellText, pieceText, seenText } from "../../../assets/js/run/look_closer/who_saw_what.js";
import { divide, stepText } from "../../../assets/js/run/ranks.js";
import { difference } from "../../../assets/js/run/try/answers.js";

const FORWARDED = {
  phase: "following",
  step: 1200,
  error: null,
  retry_unix_s: null,
  where: "http://127.0.0.1:5000",
  is_alive: true,
  command: "python -m trainers.forward runs/a",
};

Deno.test("the line of forwarding has the last step, or the error and what to do", () => {
  const text = (more) => forwardingText("MLflow", { ...FORWARDED, ...more });
  assert.equal(text({}), "MLflow: forwarded up to step 1,200 (http://127.0.0.1:5000).");
  assert.match(
    text({ phase: "retrying", error: "It does not answer.", retry_unix_s: 1_700_000_000 }),
    /step 1,200\. It does not answer\. Trying again at .+\. The run is not affected\.$/,
  );
  const done = text({ phase: "done", is_alive: false });
  assert.equal(done, "MLflow: everything is forwarded (http://127.0.0.1:5000).");
  const missing = [
    [{ phase: "given_up", error: "It is down" }, /up to step 1,200, then it gave up: It is down\. /],
    [{}, /its process has ended early/],
    [{ phase: undefined }, /has not begun/],
  ];
  for (const [more, expected] of missing) {
    const line = text({ ...more, is_alive: false });
    assert.match(line, expected);
    assert.ok(line.endsWith(FORWARDED.command));
  }
});

const PACE = {
  step_time_s: 0.0285,
  samples_per_s: 128 / 0.0285,
  num_steps: 1260,
  mean_step_time_s: 0.032,
  is_whole_run: true,
};

Deno.test("the pace of an ended run is its median and mean, and of a live one that of its newest steps", () => {
  const ended = paceText({ state: "finished", step: 1260, pace: PACE });
  assert.deepEqual(ended.samples, ["4,491", "all ranks, at the median step; mean 4,000"]);
  assert.deepEqual(ended.step, ["28.5 ms", "median of 1,260 steps; mean 32.0 ms"]);
  const pace = { ...PACE, is_whole_run: false, num_steps: 175 };
  const live = paceText({ state: "running", step: 300, pace });
  assert.deepEqual(live.samples, ["4,491", "all ranks together"]);
  assert.deepEqual(live.step, ["28.5 ms", "mean of the latest 175 steps"]);
  const short = paceText({ state: "stopped", step: 3, pace: null });
  assert.deepEqual(short.samples, ["–", "too short to measure"]);
  assert.deepEqual(short.step, ["–", "too short to measure"]);
  assert.equal(paceText({ state: "running", step: 3, pace: null }).step[1], "after the first steps");
});

const SAME = { step: 1200, num_ranks: 2, is_identical: true, differ_since: null, identical_until: 1200 };
const APART = { step: 30, num_ranks: 4, is_identical: false, differ_since: 10, identical_until: 5 };

Deno.test("replicas are grouped by their hash, and no more is claimed than was compared", () => {
  assert.deepEqual(groupsOf(["aa", "bb", "aa", "cc", "bb"]), [0, 1, 0, 2, 1]);
  assert.equal(replicaText(null), null);
  assert.equal(replicaText(SAME), "replicas identical at step 1,200");
  assert.equal(replicaText(APART), "replicas differ since step 10");
  assert.equal(replicaSentence(SAME), "Both ranks have the same weights, bit for bit, after step 1,200.");
  assert.match(replicaSentence(APART), /after step 10; .* still identical after step 5\.$/);
  assert.doesNotMatch(replicaSentence({ ...APART, identical_until: null }), /still/);
});

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
  const common = { data: 0.1, forward: 0.2, optimizer: 0.1, wait: 0.1 };
  const measured = divide({ ...STEP, all_reduce_time_s: 0.3, hidden_time_s: 0.05 });
  assert.deepEqual(rounded(measured), { ...common, backward: 0.35, reduce: 0.15 });
  assert.deepEqual(rounded(divide({ ...STEP, all_reduce_time_s: null })), { ...common, mixed: 0.5 });
  const { step_time_s, data_time_s } = STEP;
  assert.deepEqual(rounded(divide({ step_time_s, data_time_s })), { data: 0.1, compute: 0.9 });
});

Deno.test("few samples of a rank have no 95th percentile, and fewer no median", () => {
  const of = (number, p95_s) =>
    stepText({ num_samples: number, first_step: 12, last_step: 1310, median_s: 0.01, p95_s });
  assert.equal(of(1, null), "1 sampled step: too few for a median");
  assert.equal(of(6, null), "median 10.0 ms of 6 sampled steps (12 to 1,310); too few for a 95th percentile");
  assert.equal(of(20, 0.02), "median 10.0 ms of 20 sampled steps (12 to 1,310); 95th percentile 20.0 ms");
});

const PIECE = {
  first_place: 0,
  end_place: 1437,
  first_step: 1,
  num_steps: 23,
  batch_size: 32,
  num_accumulated: 1,
  num_replicas: 2,
  num_dealt: 2,
  global_batch: 64,
  last_shares: [14, 15],
};
const EPOCH = { times_seen: { fewest: 1, most: 1 }, mistake: "none", epoch: 1, is_shuffled_anew: true };

Deno.test("an epoch shows every sample once, and mistakes are named where they show", () => {
  assert.equal(seenText(EPOCH), "Every sample is seen exactly once in this epoch, by one rank.");
  const alone = { ...EPOCH, times_seen: { fewest: 2, most: 2 }, mistake: "no_sampler" };
  assert.match(seenText(alone), /^Every sample is seen 2 times in this epoch, once by each rank/);
  const same = { ...EPOCH, mistake: "no_set_epoch", is_shuffled_anew: false };
  assert.match(seenText(same), /The order is that of the first epoch/);
  assert.doesNotMatch(seenText({ ...same, epoch: 0 }), /first epoch/);
});

Deno.test("a part of an epoch is an equation, and a cell says who saw how many", () => {
  assert.equal(
    pieceText(PIECE, 1),
    "Steps 1–23: 2 ranks × 32 samples = 64 samples a step; the last step has the remaining 29, 14 or 15 a rank.",
  );
  const accumulated = { ...PIECE, end_place: 1280, num_steps: 10, num_accumulated: 2, global_batch: 128 };
  assert.equal(
    pieceText(accumulated, 1),
    "Steps 1–10: 2 ranks × 2 micro-batches × 32 samples = 128 samples a step.",
  );
  assert.match(pieceText(PIECE, 2), /2 copies × 32/);
  const picture = {
    columns: { first: 0, last: 7, size: 4, number: 2 },
    rows: { first: 1, last: 2, size: 1, number: 2 },
    ranks: { first: 0, last: 1, size: 1, number: 2 },
    counts: [
      [2, 0, 1, 1],
      [0, 0, 0, 2],
    ],
  };
  const data = { by: "sample", picture };
  assert.equal(cellText(data, 0, 1, 1), "Samples 4–7, step 1: rank 0 saw 1, rank 1 saw 1.");
  assert.equal(cellText(data, 1, 0, 1), "Samples 0–3, step 2: nobody.");
});

const answer = (prediction, shares) => ({
  prediction,
  probabilities: Object.entries(shares).map(([name, share]) => ({ class_name: name, probability: share })),
});

Deno.test("two answers are compared by the class in which they differ most", () => {
  const mark = "The line in each bar marks the other answer.";
  assert.equal(
    difference(answer("b", { a: 0.25, b: 0.75 }), answer("a", { a: 0.9, b: 0.1 })),
    `They disagree: b and a. The largest difference is at a: 25.0% and 90.0%. ${mark}`,
  );
  assert.match(difference(answer("a", { a: 0.8, b: 0.2 }), answer("a", { a: 1 })), /^Both say a\. /);
  const none = difference(answer("a", { a: 1 }), answer("b", { b: 1 }));
  assert.equal(none, "The two models have no class in common.");
  assert.equal(difference({ value: 1.5 }, { value: 4 }), "The two numbers differ by 2.5.");
});
