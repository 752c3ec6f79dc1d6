import assert from "node:assert/strict";

import {
  readWords,
  ticks,
  tickWords,
  nearestPoint,
  pointsOf,
  rangeOf,
} from "../../../assets/js/charts/plot.js";

const labels = (low, high, most, isShare = false) =>
  ticks(low, high, most, false).map(({ place, step }) => tickWords(place, step, isShare));

Deno.test("ticks are those that the server has written", () => {
  assert.deepEqual(labels(0, 100, 5), ["0", "20", "40", "60", "80", "100"]);
  assert.deepEqual(labels(0, 0.31, 5), ["0.0", "0.1", "0.2", "0.3"]);
  assert.deepEqual(labels(1234, 1236, 5), ["1,234.0", "1,234.5", "1,235.0", "1,235.5", "1,236.0"]);
  assert.deepEqual(labels(0.9, 0.95, 5, true), ["90%", "91%", "92%", "93%", "94%", "95%"]);
});

Deno.test("a logarithmic axis has powers of ten, and round places between them when zoomed", () => {
  const read = (low, high) => ticks(low, high, 5, true).map(({ place }) => readWords(10 ** place, false));
  assert.deepEqual(read(-3, 1), ["0.001", "0.01", "0.1", "1", "10"]);
  assert.equal(read(0, 0.3).length > 2, true);
});

Deno.test("points are read from a path, gaps and all", () => {
  const points = pointsOf("M0 5l10-2 3 4M30 7l10 0");
  assert.deepEqual(points, [[0, 5], [10, 3], [13, 7], [30, 7], [40, 7]]); // prettier-ignore
  assert.deepEqual(pointsOf(""), []);
});

Deno.test("the nearest point, and what lies between two places", () => {
  const points = pointsOf("M0 5l10-2 3 4M30 7l10 0");
  assert.deepEqual(nearestPoint(points, 11), [10, 3]);
  assert.deepEqual(nearestPoint(points, 99), [40, 7]);
  assert.equal(nearestPoint([], 1), undefined);
  assert.deepEqual(rangeOf([points], 5, 14), [3, 7]);
  assert.equal(rangeOf([points], 50, 60), null);
});
