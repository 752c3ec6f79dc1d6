import assert from "node:assert/strict";

import {
  cellWords,
  pieceWords,
  rankWords,
  seenWords,
} from "../../../assets/js/run/look_closer/who_saw_what.js";

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

Deno.test("a healthy epoch shows every sample once", () => {
  assert.equal(seenWords(EPOCH), "Every sample is seen exactly once in this epoch, by one rank.");
});

Deno.test("mistakes are named where they show", () => {
  const alone = { ...EPOCH, times_seen: { fewest: 2, most: 2 }, mistake: "no_sampler" };
  assert.match(seenWords(alone), /^Every sample is seen 2 times in this epoch, once by each rank/);
  const same = { ...EPOCH, mistake: "no_set_epoch", is_shuffled_anew: false };
  assert.match(seenWords(same), /The order is that of the first epoch/);
  assert.doesNotMatch(seenWords({ ...same, epoch: 0 }), /first epoch/);
});

Deno.test("a part of an epoch is an equation", () => {
  assert.equal(
    pieceWords(PIECE, 1),
    "Steps 1–23: 2 ranks × 32 samples = 64 samples a step; the last step has the remaining 29, 14 or 15 a rank.",
  );
  const accumulated = { ...PIECE, end_place: 1280, num_steps: 10, num_accumulated: 2, global_batch: 128 };
  assert.equal(
    pieceWords(accumulated, 1),
    "Steps 1–10: 2 ranks × 2 micro-batches × 32 samples = 128 samples a step.",
  );
  assert.match(pieceWords(PIECE, 2), /2 copies × 32/);
  const alone = { ...PIECE, end_place: 1440, num_steps: 45, num_dealt: 1, global_batch: 32 };
  assert.equal(
    pieceWords(alone, 1),
    "Steps 1–45: 32 samples = 32 samples a step for each of 2 ranks, the same ones.",
  );
});

Deno.test("a cell says who saw how many", () => {
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
  assert.equal(cellWords(data, 0, 0, 1), "Samples 0–3, step 1: rank 0 saw 2.");
  assert.equal(cellWords(data, 0, 1, 1), "Samples 4–7, step 1: rank 0 saw 1, rank 1 saw 1.");
  assert.equal(cellWords(data, 1, 0, 1), "Samples 0–3, step 2: nobody.");
  assert.equal(rankWords({ first: 0, last: 15, size: 8 }, 1, 1), "ranks 8–15");
});
