import assert from "node:assert/strict";

import { isAhead, joined, nothing } from "../../../assets/js/learn/progress.js";
import { medians } from "../../../assets/js/learn/polls/results.js";

const made = (values) => ({ ...nothing(), ...values });

Deno.test("the newer wins, but no started run is lost", () => {
  const known = made({ prediction: 1, isLocked: true, isStarted: true, runs: ["run-1", "run-2"] });
  const found = joined(known, made({ prediction: 0, runs: ["run-9", null] }));
  assert.equal(found.prediction, 1);
  assert.deepEqual([found.isLocked, found.isStarted], [true, true]);
  assert.deepEqual(found.runs, ["run-9", "run-2"]);
  assert.equal(joined(made({ prediction: 0 }), made({ prediction: 2 })).prediction, 2);
});

Deno.test("a start that failed is taken back by who knows of all runs", () => {
  const known = made({ isStarted: true, runs: ["run-1", null] });
  assert.equal(joined(known, made({ runs: ["run-1", null] })).isStarted, false);
  assert.equal(joined(known, made({})).isStarted, true);
});

Deno.test("attempts and answers of both pages are kept, each once", () => {
  const [one, other] = [0, 1].map((number) => ({ choice: "seed 1", runId: `run-${number}` }));
  const told = made({ attempts: { 1: [other], 2: [other] }, answers: { 0: 2, 1: 0 }, isDone: true });
  const found = joined(made({ attempts: { 1: [one] }, answers: { 0: 1 } }), told);
  assert.deepEqual(found.attempts, { 1: [one, other], 2: [other] });
  assert.deepEqual(found.answers, { 0: 1, 1: 0 });
  assert.deepEqual(joined(found, told).attempts, found.attempts);
});

Deno.test("what was begun anew is not taken back by a page that does not know", () => {
  const anew = made({ round: 3 });
  const stale = made({ round: 2, prediction: 1, isLocked: true, runs: ["run-1"] });
  assert.deepEqual(joined(anew, stale), anew);
  assert.deepEqual(joined(stale, anew), anew);
  // For example, a run was deleted and is requested again.
  assert.deepEqual(joined(stale, { ...stale, round: 3, runs: [null] }).runs, [null]);
});

Deno.test("a page reads a lesson anew only when another one is ahead", () => {
  const [begun, locked] = [made({ prediction: 1 }), made({ prediction: 1, isLocked: true })];
  assert.equal(isAhead(begun, made({})), false);
  assert.equal(isAhead(locked, begun), true);
  assert.equal(isAhead(begun, locked), false);
  assert.equal(isAhead(made({ answers: { 0: 1 } }), made({})), true);
  assert.equal(isAhead(made({ round: 1 }), locked), true);
  assert.equal(isAhead(locked, made({ round: 1 })), false);
});

Deno.test("the median of drawn curves is taken at each point", () => {
  assert.deepEqual(medians([]), []);
  const curves = [1, 10, 3, 2].map((value) => Array(9).fill(value));
  assert.deepEqual(medians(curves), Array(9).fill(2.5));
  assert.deepEqual(medians(curves.slice(0, 3)), Array(9).fill(3));
});
