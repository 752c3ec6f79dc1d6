import assert from "node:assert/strict";

import { groupsOf, replicaSentence, replicaWords } from "../../../assets/js/run/look_closer/fingerprints.js";

const SAME = { step: 1200, num_ranks: 2, is_identical: true, differ_since: null, identical_until: 1200 };
const APART = { step: 30, num_ranks: 4, is_identical: false, differ_since: 10, identical_until: 5 };

Deno.test("ranks with one hash are in one group, and rank 0's is the first", () => {
  assert.deepEqual(groupsOf(["aa", "aa", "aa"]), [0, 0, 0]);
  assert.deepEqual(groupsOf(["aa", "bb", "aa", "cc", "bb"]), [0, 1, 0, 2, 1]);
});

Deno.test("the badge says whether replicas are identical, and since when they are not", () => {
  assert.equal(replicaWords(null), null);
  assert.equal(replicaWords(SAME), "replicas identical at step 1,200");
  assert.equal(replicaWords(APART), "replicas differ since step 10");
});

Deno.test("the sentence claims no more than was compared", () => {
  assert.equal(replicaSentence(SAME), "Both ranks have the same weights, bit for bit, after step 1,200.");
  assert.match(replicaSentence(APART), /after step 10; .* still identical after step 5\.$/);
  assert.doesNotMatch(replicaSentence({ ...APART, identical_until: null }), /still/);
  assert.match(replicaSentence({ ...SAME, num_ranks: 8 }), /^All 8 ranks have/);
});
