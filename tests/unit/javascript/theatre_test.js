// Arithmetic of the theatres: lanes of a real recording, the activity of a rank at a given time, and the rule
// of the ring.

import assert from "node:assert/strict";

import { activityAt, lanesOf } from "../../../assets/js/run/theatre/lanes.js";
import {
  allReduceOf,
  measuredRounds,
  ringEnd,
  ringRounds,
  treeRounds,
} from "../../../assets/js/run/theatre/rounds.js";

import golden from "../../golden/recording_digits_mlp.json" with { type: "json" };

const near = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-6, `${found} is not ${expected}`);

Deno.test("both ranks of a real step have all of its parts, and what a rank does is said in words", () => {
  const lanes = lanesOf(golden, 1);
  assert.equal(lanes.ranks.length, 2);
  for (const { compute, collectives } of lanes.ranks) {
    // Backward is suspended while its thread averages, so it appears before and after that.
    const kinds = compute.map(({ kind }) => kind);
    assert.deepEqual(kinds, ["data", "forward", "backward", "backward", "optimizer", "other"]);
    assert.deepEqual(
      collectives.map(({ kind }) => kind),
      ["reduce", "wait"],
    );
    for (const { began, ended } of [...compute, ...collectives]) {
      assert.ok(began >= 0 && began <= ended && ended <= lanes.length + 1e-9);
    }
  }
  const piece = (kind, text, began, ended) => ({ kind, text, began, ended });
  const lane = {
    compute: [piece("forward", "forward", 0, 2), piece("backward", "backward", 2, 6)],
    collectives: [piece("reduce", "all-reduce of bucket 0", 4, 8)],
  };
  assert.equal(activityAt(lane, 1), "forward");
  assert.equal(activityAt(lane, 5), "backward, and at the same time all-reduce of bucket 0");
  assert.equal(activityAt(lane, 9), "between two steps");
});

for (const num of [2, 3, 7]) {
  const rounds = ringRounds(num);

  Deno.test(`after the rounds of a ring of ${num} every rank has every whole sum`, () => {
    assert.equal(rounds.length, 2 * (num - 1));
    const { counts, sends } = rounds.at(-1);
    const after = counts.map((row) => [...row]);
    for (const { from, to, chunk } of sends) after[to][chunk] = counts[from][chunk];
    assert.deepEqual(after, ringEnd(num));
  });
}

for (const num of [2, 5, 8]) {
  Deno.test(`along a tree of ${num} the whole sum comes down to every rank`, () => {
    const rounds = treeRounds(num);
    assert.equal(rounds.length, 2 * Math.ceil(Math.log2(num)));
    const { counts, sends } = rounds.at(-1);
    const after = counts.map((row) => [...row]);
    for (const { from, to } of sends) after[to][0] = counts[from][0];
    assert.deepEqual(
      after,
      Array.from({ length: num }, () => [num]),
    );
  });
}

Deno.test("a bucket's all-reduce over both ranks, and its measured rounds", () => {
  const reduced = allReduceOf(golden, 1, 0);
  assert.ok(reduced.began <= reduced.lastBegan && reduced.lastBegan < reduced.ended);
  const rounds = measuredRounds(reduced);
  assert.equal(
    rounds.reduce((sum, { bytes }) => sum + bytes, 0),
    golden.buckets[0].bytes,
  );
  for (const { ranks } of rounds) {
    ranks.forEach(({ write, wait, add }, index) => {
      const [began, , , ended] = reduced.ranks[index].reduced.rounds[0];
      near(write + wait + add, ended - began);
    });
  }
  assert.equal(allReduceOf(golden, 1, 5), null);
});
