import assert from "node:assert/strict";

import { partsOf, waterfall } from "../../../assets/js/learn/bars.js";

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
const HALF = {
  head: head(2, 32, 0.008),
  history: [
    rank([0.008, 0.0005, 0.001, 0.005, 0.001, 0.001, 0.003, 0]),
    rank([0.008, 0.0005, 0.001, 0.005, 0.001, 0.001, 0.003, 0]),
  ],
}; // prettier-ignore

const close = (value, expected) => assert.ok(Math.abs(value - expected) < 1e-9, `${value}, not ${expected}`);

Deno.test("one rank alone waits for nobody: its passes are computing", () => {
  const parts = partsOf(ALONE.history);
  close(parts.computing, 0.008);
  close(parts.data, 0.001);
  assert.deepEqual([parts.waiting, parts.communicating], [0, 0]);
});

Deno.test("what is averaged in sight is communicating, less the waiting in it", () => {
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
  const parts = partsOf([
    rank(waits, waitsNot, disturbed),
    rank(waitsNot, waits, [0.9, 0, 0.4, 0.4, 0.1, 0, 0, 0]),
  ]);
  close(parts.waiting, 0.2);
});

Deno.test("from N times to what came nothing is lost: the rest is said to be unexplained", () => {
  const found = waterfall(ALONE, HALF);
  assert.ok(found);
  close(found.best, 2);
  close(found.came, 1.25);
  // Each rank has half of the samples and computes for half as long: no cost.
  close(found.costs.computing, 0);
  close(found.costs.data, 0);
  close(found.costs.communicating, 0.5);
  close(found.costs.waiting, 0.25);
  close(found.unexplained, 0);
  const slower = waterfall(ALONE, { ...HALF, head: head(2, 32, 0.01) });
  assert.ok(slower);
  const all = Object.values(slower.costs).reduce((sum, cost) => sum + cost, 0);
  close(slower.best - all - slower.unexplained, slower.came);
  assert.ok(slower.unexplained > 0.3);
});

Deno.test("with as many samples on each rank the share of a part is the whole of it", () => {
  const found = waterfall(ALONE, { ...HALF, head: head(2, 64, 0.01) });
  assert.ok(found);
  close(found.came, 2);
  close(found.costs.computing, (2 * (0.004 - 0.008)) / 0.01);
});

Deno.test("what was not measured has no waterfall", () => {
  assert.equal(partsOf([]), null);
  assert.equal(partsOf([rank([1, 0, null, null, null, null, null, null])]), null);
  assert.equal(waterfall(ALONE, { ...HALF, history: [] }), null);
  assert.equal(waterfall(ALONE, { ...HALF, head: { ...HALF.head, pace: null } }), null);
});
