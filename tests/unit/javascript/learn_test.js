import assert from "node:assert/strict";

import { partsOf, waterfall } from "../../../assets/js/learn/bars.js";
import { medians } from "../../../assets/js/learn/polls/results.js";
import { isAhead, joined, nothing } from "../../../assets/js/learn/progress.js";
import { plainWords } from "../../../assets/js/learn/text.js";

import cases from "../progress_cases.json" with { type: "json" };

// step, data, forward, backward, optimizer, wait, all_reduce, hidden
const rank = (...slices) => ({ rank: 0, num_samples: slices.length, slices });
const head = (num_ranks, global_batch, step_time_s) => ({
  num_ranks,
  global_batch,
  pace: { samples_per_s: global_batch / step_time_s, step_time_s, mean_step_time_s: 1 },
});
const ALONE = {
  head: head(1, 32, 0.01),
  history: [rank([0.01, 0.001, 0.002, 0.004, 0.002, 0.003, null, null])],
};
const RANK = rank([0.008, 0.0005, 0.001, 0.005, 0.001, 0.001, 0.003, 0]);
const HALF = { head: head(2, 32, 0.008), history: [RANK, RANK] };

const close = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-9, `${value}, not ${expected}`);

Deno.test("a step is computing, data, waiting and what is averaged in sight, less the waiting in it", () => {
  const alone = partsOf(ALONE.history);
  close(alone.computing, 0.008);
  close(alone.data, 0.001);
  assert.deepEqual([alone.waiting, alone.communicating], [0, 0]);
  const parts = partsOf(HALF.history);
  close(parts.waiting, 0.001);
  close(parts.communicating, 0.002);
  close(parts.computing, 0.004);
  // If the all-reduce is hidden, only the waiting is visible.
  close(partsOf([rank([1, 0, 0.2, 0.6, 0.1, 0.1, 0.4, 0.4]), rank()]).communicating, 0);
});

Deno.test("one step that was disturbed does not count, and who waits in turn does", () => {
  const waits = [1, 0.1, 0.2, 0.6, 0.1, 0.4, 0.4, 0];
  const waitsNot = [1, 0.1, 0.4, 0.4, 0.1, 0, 0, 0];
  const disturbed = [99, 0, 50, 49, 0, 0, 0, 0];
  const others = rank(waitsNot, waits, [0.9, 0, 0.4, 0.4, 0.1, 0, 0, 0]);
  close(partsOf([rank(waits, waitsNot, disturbed), others]).waiting, 0.2);
});

Deno.test("from N times to what came nothing is lost: the rest is said to be unexplained", () => {
  const found = waterfall(ALONE, HALF);
  close(found.best, 2);
  close(found.came, 1.25);
  // Each rank has half of the samples and computes for half as long: no cost.
  close(found.costs.computing, 0);
  close(found.costs.communicating, 0.5);
  close(found.costs.waiting, 0.25);
  close(found.unexplained, 0);
  const slower = waterfall(ALONE, { ...HALF, head: head(2, 32, 0.01) });
  const all = Object.values(slower.costs).reduce((sum, cost) => sum + cost, 0);
  close(slower.best - all - slower.unexplained, slower.came);
  assert.ok(slower.unexplained > 0.3);
});

Deno.test("what was not measured has no waterfall", () => {
  assert.equal(partsOf([rank([1, 0, null, null, null, null, null, null])]), null);
  assert.equal(waterfall(ALONE, { ...HALF, history: [] }), null);
  assert.equal(waterfall(ALONE, { ...HALF, head: { ...HALF.head, pace: null } }), null);
});

const made = (values) => ({ ...nothing(), ...values });

for (const { name, known, told, joined: expected } of cases) {
  Deno.test(`progress of two pages: ${name}`, () => {
    const found = joined(made(known), made(told));
    for (const [field, value] of Object.entries(expected)) assert.deepEqual(found[field], value, field);
  });
}

Deno.test("a start that failed is taken back by who knows of all runs", () => {
  const known = made({ isStarted: true, runs: ["run-1", null] });
  assert.equal(joined(known, made({ runs: ["run-1", null] })).isStarted, false);
  assert.equal(joined(known, made({})).isStarted, true);
});

Deno.test("a page reads a lesson anew only when another one is ahead", () => {
  const [begun, locked] = [made({ prediction: 1 }), made({ prediction: 1, isLocked: true })];
  assert.equal(isAhead(begun, made({})), false);
  assert.equal(isAhead(locked, begun), true);
  assert.equal(isAhead(begun, locked), false);
  assert.equal(isAhead(made({ answers: { 0: 1 } }), made({})), true);
  assert.equal(isAhead(made({ round: 1 }), locked), true);
});

Deno.test("the median of drawn curves is taken at each point", () => {
  assert.deepEqual(medians([]), []);
  const curves = [1, 10, 3, 2].map((value) => Array(9).fill(value));
  assert.deepEqual(medians(curves), Array(9).fill(2.5));
  assert.deepEqual(medians(curves.slice(0, 3)), Array(9).fill(3));
});

Deno.test("a learner reads no places in the code, and the steps that the table counts", () => {
  const error =
    "Nothing has been reported for 6 s: " +
    "rank 0 is at step 24, evaluating, in trainers/mistakes/only_rank_0.py:24, _OtherGroup.sum; " +
    "rank 1 is at step 2, saving, in my net.py:3, <lambda>.";
  assert.equal(
    plainWords(error),
    "Nothing has been reported for 6 s: rank 0 has done 23 steps and is evaluating; " +
      "rank 1 has done 1 step and is saving.",
  );
  assert.equal(plainWords("The disk is full."), "The disk is full.");
});
