import assert from "node:assert/strict";

import { comparer } from "../../../assets/js/runs/columns.js";

const row = (run_id, more) => ({ run_id, name: run_id, created_unix_s: 0, ...more });
const sorted = (rows, sort) => rows.toSorted(comparer(sort)).map(({ run_id }) => run_id);

Deno.test("names are sorted as people count: 2 before 10", () => {
  const rows = [row("run 10"), row("run 2")];
  assert.deepEqual(sorted(rows, "name"), ["run 2", "run 10"]);
  assert.deepEqual(sorted(rows, "-name"), ["run 10", "run 2"]);
});

Deno.test("what is not known comes last, in both directions", () => {
  const rows = [row("none", { loss: null }), row("low", { loss: 1 }), row("high", { loss: 2 })];
  assert.deepEqual(sorted(rows, "loss"), ["low", "high", "none"]);
  assert.deepEqual(sorted(rows, "-loss"), ["high", "low", "none"]);
});

Deno.test("a sort that nobody knows, and the column that cannot be sorted by, mean the start", () => {
  const rows = [row("new", { created_unix_s: 2 }), row("old", { created_unix_s: 1 })];
  assert.deepEqual(sorted(rows, "nonsense"), ["old", "new"]);
  assert.deepEqual(sorted(rows, "-curve"), ["new", "old"]);
});

Deno.test("states go from what runs to what has ended", () => {
  const rows = ["finished", "queued", "running", "failed"].map((state) => row(state, { state }));
  assert.deepEqual(sorted(rows, "state"), ["running", "queued", "failed", "finished"]);
});
