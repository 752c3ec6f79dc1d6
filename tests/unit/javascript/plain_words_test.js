import assert from "node:assert/strict";

import { plainWords } from "../../../assets/js/learn/text.js";

Deno.test("a learner reads no places in the code, and the steps that the table counts", () => {
  const error =
    "The run hangs: the ranks wait for each other in different collectives. Nothing has been reported for 6 s: " +
    "rank 0 is at step 24, evaluating, in trainers/mistakes/only_rank_0.py:24, _OtherGroup.sum; " +
    "rank 1 is at step 24, in forward and backward, in trainers/parallel/shared_all_reduce.py:157, SharedSum._wait_for. " +
    "Rank 1 never entered all-reduce 7 (float64, 824 bytes), in which rank 0 waits.";
  assert.equal(
    plainWords(error),
    "The run hangs: the ranks wait for each other in different collectives. Nothing has been reported for 6 s: " +
      "rank 0 has done 23 steps and is evaluating; rank 1 has done 23 steps and is in forward and backward. " +
      "Rank 1 never entered all-reduce 7 (float64, 824 bytes), in which rank 0 waits.",
  );
});

Deno.test("a step, and a place in a file of one's own", () => {
  assert.equal(
    plainWords("rank 0 is at step 2, saving, in my net.py:3, <lambda>."),
    "rank 0 has done 1 step and is saving.",
  );
});

Deno.test("what names no place and no step stays as it is", () => {
  for (const words of ["rank 1 is before its first heartbeat.", "The disk is full.", ""]) {
    assert.equal(plainWords(words), words);
  }
});
