import assert from "node:assert/strict";

import { ticks, tickWords } from "../../../assets/js/charts/plot.js";

const labels = (low, high, most) => ticks(low, high, most).map(({ place, step }) => tickWords(place, step));

Deno.test("ticks are round, and their labels as precise as they must be", () => {
  assert.deepEqual(labels(0, 100, 5), ["0", "20", "40", "60", "80", "100"]);
  assert.deepEqual(labels(0, 0.31, 5), ["0.0", "0.1", "0.2", "0.3"]);
  assert.deepEqual(labels(1234, 1236, 5), ["1,234.0", "1,234.5", "1,235.0", "1,235.5", "1,236.0"]);
});
