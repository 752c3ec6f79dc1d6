// The sentence about two answers to the same input.

import assert from "node:assert/strict";

import { difference } from "../../../assets/js/run/try/answers.js";

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
  assert.equal(
    difference(answer("a", { a: 0.8, b: 0.1, c: 0.1 }), answer("a", { a: 0.7, c: 0.3 })),
    `Both say a. The largest difference is at c: 10.0% and 30.0%. ${mark}`,
  );
});

Deno.test("answers without a common class, and numbers, are compared too", () => {
  assert.equal(
    difference(answer("a", { a: 1 }), answer("b", { b: 1 })),
    "The two models have no class in common.",
  );
  assert.equal(difference({ value: 1.5 }, { value: 4 }), "The two numbers differ by 2.5.");
});
