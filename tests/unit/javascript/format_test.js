import assert from "node:assert/strict";

import * as format from "../../../assets/js/shared/format.js";

/** Checks that a function of one value returns the expected text for each value. */
function says(describe, cases) {
  const { name } = describe;
  Deno.test(name, () => {
    for (const [value, expected] of cases) assert.equal(describe(value), expected, `${name}(${value})`);
  });
}

says(format.count, [
  [0, "0"],
  [2e15, "2.00e+15"],
  [null, "–"],
  [Number.NaN, "–"],
]);
says(format.shareDone, [
  [{ state: "running", step: 30, num_steps: 120 }, 0.25],
  [{ state: "running", step: 30, num_steps: null }, null],
  [{ state: "finished", step: 30, num_steps: null }, 1],
]);
says(format.number, [
  [0, "0"],
  [1 / 3, "0.3333"],
  [0.00005, "5.00e-5"],
]);
says(format.loss, [
  [0, "0.0000"],
  [2.46813579, "2.4681"],
  [0.0001234, "1.23e-4"],
  [Number.POSITIVE_INFINITY, "–"],
]);
says(format.metricLabel, [
  ["macro_f1", "macro F1"],
  ["own_metric", "own metric"],
  ["rmse", "RMSE"],
  ["a<b", "a‹b"],
  ["m".repeat(3_000), `${"m".repeat(29)}…`],
]);
says(format.shortName, [
  ["🎈".repeat(30), "🎈".repeat(30)],
  ["🎈".repeat(31), `${"🎈".repeat(29)}…`],
]);
says(format.percent, [
  [0.872, "87.2%"],
  [null, "–"],
]);
says(format.bytes, [
  [999, "999 bytes"],
  [1000, "1.0 kB"],
  [2_500_000_000_000, "2.5 TB"],
  [-1, "–"],
]);
says(format.shortTime, [
  [0.0009994, "999 µs"],
  [0.0009996, "1.00 ms"],
  [0.9996, "1.00 s"],
  [null, "–"],
]);
says(format.duration, [
  [59.6, "1 min 00 s"],
  [7800, "2 h 10 min"],
  [273_600, "3 d 4 h"],
  [-5, "0 s"],
]);
says(format.about, [
  [44, "in less than a minute"],
  [9000, "in about 2.5 h"],
  [null, null],
]);
says(format.ordinal, [
  [1, "1st"],
  [2, "2nd"],
  [11, "11th"],
  [112, "112th"],
]);

Deno.test("a metric is a share or a number by its name", () => {
  assert.equal(format.metric("accuracy", 0.5), "50.0%");
  assert.equal(format.metric("perplexity", 12.345), "12.35");
  assert.equal(format.metric("rmse", 0.12345), "0.123");
});

Deno.test("how long ago is told from the time that is given", () => {
  const now_s = 1_800_000_000;
  const told = (seconds) => format.ago(now_s - seconds, now_s * 1000);
  assert.equal(told(10), "just now");
  assert.equal(told(300), "5 min ago");
  assert.equal(told(3 * 3600), "3 h ago");
  assert.equal(told(2 * 86400), "2 d ago");
});

Deno.test("every live state has words of its own", () => {
  for (const state of format.LIVE_STATES) assert.equal(format.state(state)[1], state);
  assert.deepEqual(format.state("melted"), ["question", "melted"]);
});

Deno.test("Resume promises the same bits on the CPU and with Deterministic alone", () => {
  assert.equal(format.resumedBits(false, "cpu"), " with the same bits");
  assert.equal(format.resumedBits(true, "cuda"), " with the same bits");
  assert.match(format.resumedBits(false, "cuda"), /not to the last bit/);
  assert.equal(format.resumedBits(false, ""), "");
});
