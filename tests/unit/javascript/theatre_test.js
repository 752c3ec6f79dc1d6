// Arithmetic of the theatres: lanes of a real recording, the activity of a rank at a given time, and the rule
// of the ring.

import assert from "node:assert/strict";

import {
  bordersOf,
  activityAt,
  lanesOf,
  shortName,
  MIN_DISTANCE,
  without,
} from "../../../assets/js/run/theatre/lanes.js";
import {
  allReduceOf,
  measuredRounds,
  ringEnd,
  ringRounds,
  treeRounds,
} from "../../../assets/js/run/theatre/rounds.js";

import golden from "../../golden/recording_digits_mlp.json" with { type: "json" };

const near = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-6, `${found} is not ${expected}`);

Deno.test("what is taken out of a span leaves the rest", () => {
  assert.deepEqual(without(0, 10, []), [[0, 10]]);
  assert.deepEqual(
    without(0, 10, [
      [7, 8],
      [2, 3],
    ]),
    [
      [0, 2],
      [3, 7],
      [8, 10],
    ],
  );
  assert.deepEqual(without(4, 6, [[0, 10]]), []);
  assert.deepEqual(without(4, 6, [[5, 10]]), [[4, 5]]);
});

Deno.test("the lanes of a real step begin at 0 and have every part of both ranks", () => {
  const lanes = lanesOf(golden, 1);
  assert.equal(lanes.ranks.length, 2);
  assert.equal(Math.min(...lanes.ranks.flatMap(({ compute }) => compute.map(({ began }) => began))), 0);
  for (const { compute, collectives } of lanes.ranks) {
    // Backward is suspended while its thread averages, so it appears before and after that.
    assert.deepEqual(
      compute.map(({ kind }) => kind),
      ["data", "forward", "backward", "backward", "optimizer", "other"],
    );
    assert.deepEqual(
      collectives.map(({ kind }) => kind),
      ["reduce", "wait"],
    );
    for (const { began, ended } of [...compute, ...collectives]) {
      assert.ok(began >= 0 && began <= ended && ended <= lanes.length + 1e-9);
    }
  }
});

Deno.test("borders are in order and none is so near another that nobody can tell them apart", () => {
  const lanes = lanesOf(golden, 1);
  const borders = bordersOf(lanes);
  assert.ok(borders.length > 8 && borders[0] === 0 && borders.at(-1) === lanes.length);
  for (let index = 1; index < borders.length; index += 1) {
    assert.ok(borders[index] - borders[index - 1] > lanes.length * MIN_DISTANCE);
  }
});

Deno.test("what a rank does is said in words", () => {
  const piece = (kind, words, began, ended) => ({ kind, words, began, ended });
  const lanes = {
    rank: 0,
    host: "",
    compute: [piece("forward", "forward", 0, 2), piece("backward", "backward", 2, 6)],
    collectives: [
      piece("reduce", "all-reduce of bucket 0", 4, 8),
      piece("wait", "waits for the other ranks in bucket 0", 6.5, 7),
    ],
  };
  assert.equal(activityAt(lanes, 1), "forward");
  assert.equal(activityAt(lanes, 5), "backward, and at the same time all-reduce of bucket 0");
  assert.equal(activityAt(lanes, 6.2), "all-reduce of bucket 0");
  assert.equal(activityAt(lanes, 6.7), "waits for the other ranks in bucket 0");
  assert.equal(activityAt(lanes, 9), "between two steps");
  assert.equal(shortName("gloo:all_gather"), "all-gather");
});

for (const num of [2, 3, 4, 7]) {
  const rounds = ringRounds(num);

  Deno.test(`after the rounds of a ring of ${num} every rank has every whole sum`, () => {
    assert.equal(rounds.length, 2 * (num - 1));
    const { counts, sends } = rounds.at(-1);
    const after = counts.map((row) => [...row]);
    for (const { from, to, chunk } of sends) after[to][chunk] = counts[from][chunk];
    assert.deepEqual(after, ringEnd(num));
  });

  Deno.test(`in a ring of ${num} each rank sends one chunk a round to its neighbour; what is handed on is whole`, () => {
    for (const { phase, sends, counts } of rounds) {
      assert.deepEqual(
        sends.map(({ to }) => to),
        sends.map(({ from }) => (from + 1) % num),
      );
      const isWhole = sends.every(({ from, chunk }) => counts[from][chunk] === num);
      assert.equal(isWhole, phase === "all-gather");
    }
  });
}

for (const num of [2, 3, 5, 8]) {
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
