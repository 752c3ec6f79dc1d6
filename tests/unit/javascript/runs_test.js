import assert from "node:assert/strict";

import { comparer } from "../../../assets/js/runs/columns.js";
import { chartQuery, placeOf, spanOn } from "../../../assets/js/runs/compare_figure.js";
import { samplesAt, scaling, speedUp } from "../../../assets/js/runs/scaling.js";
import {
  CURRENT_USER,
  facetValues,
  filterFromAddress,
  isFiltering,
  matcher,
} from "../../../assets/js/runs/filter.js";

import cases from "../speed_up_cases.json" with { type: "json" };

const row = (run_id, more) => ({ run_id, name: run_id, created_unix_s: 0, ...more });
const sorted = (rows, sort) => rows.toSorted(comparer(sort)).map(({ run_id }) => run_id);

Deno.test("names are sorted as people count, and what is not known comes last in both directions", () => {
  const rows = [row("run 10", { loss: null }), row("run 2", { loss: 1 }), row("run 3", { loss: 2 })];
  assert.deepEqual(sorted(rows, "name"), ["run 2", "run 3", "run 10"]);
  assert.deepEqual(sorted(rows, "loss"), ["run 2", "run 3", "run 10"]);
  assert.deepEqual(sorted(rows, "-loss"), ["run 3", "run 2", "run 10"]);
  const states = ["finished", "queued", "running", "failed"].map((state) => row(state, { state }));
  assert.deepEqual(sorted(states, "state"), ["running", "queued", "failed", "finished"]);
});

Deno.test("a sort that nobody knows, and the column that cannot be sorted by, mean the start", () => {
  const rows = [row("new", { created_unix_s: 2 }), row("old", { created_unix_s: 1 })];
  assert.deepEqual(sorted(rows, "nonsense"), ["old", "new"]);
  assert.deepEqual(sorted(rows, "-curve"), ["new", "old"]);
});

const ROW = {
  run_id: "r1",
  name: "First try",
  owner: "ada",
  tags: ["lecture"],
  note: "warm-up too short",
  model: "cnn",
  model_label: "CNN",
  dataset: "mnist",
  dataset_label: "MNIST",
  state: "running",
};
const shows = (search, shown = ROW, me = "") => matcher({ ...filterFromAddress(search), me })(shown);

Deno.test("an address without a query shows everything, the newest first; else each choice must suit", () => {
  assert.equal(filterFromAddress("").sort, "-started");
  assert.equal(isFiltering(filterFromAddress("")), false);
  assert.equal(isFiltering(filterFromAddress("?q=first")), true);
  assert.equal(shows(""), true);
  assert.equal(shows("?q=FIRST+warm-up"), true);
  assert.equal(shows("?q=first+second"), false);
  assert.equal(shows("?state=live"), true);
  assert.equal(shows("?state=live", { ...ROW, state: "queued" }), true);
  assert.equal(shows("?state=live", { ...ROW, state: "finished" }), false);
  assert.equal(shows("?state=paused"), false);
  const mine = `?owner=${encodeURIComponent(CURRENT_USER)}`;
  assert.equal(shows(mine, ROW, "ada"), true);
  assert.equal(shows(mine, ROW, "grace"), false);
  assert.equal(shows("?model=cnn&dataset=mnist&tag=lecture"), true);
  assert.equal(shows("?model=cnn&dataset=mnist&tag=exam"), false);
});

Deno.test("the values of a facet are counted, and named by the label", () => {
  const other = { ...ROW, run_id: "r2", owner: "", tags: [], dataset: "digits", dataset_label: "Digits" };
  const found = facetValues(new Map([ROW, other].map((one) => [one.run_id, one])));
  assert.deepEqual(found.model.get("cnn"), { label: "CNN", count: 2 });
  assert.deepEqual([...found.dataset.keys()], ["mnist", "digits"]);
  assert.deepEqual([...found.owner.keys()], ["ada"]);
});

const run = (num_ranks, step_time_s, global_batch = 100) => ({
  num_ranks,
  global_batch,
  num_train: 1050,
  pace: { samples_per_s: global_batch / step_time_s, step_time_s, mean_step_time_s: 1 },
});
const RANKS = [{ field: "nproc_per_node" }];

Deno.test("a step has its place in samples and in epochs, whose last step has fewer samples", () => {
  assert.deepEqual(
    [10, 11, 12].map((step) => samplesAt(run(1, 1), step)),
    [1000, 1050, 1150],
  );
  assert.equal(samplesAt({ ...run(1, 1), num_train: null }, 12), null);
  assert.equal(placeOf(run(1, 1), 11, "samples"), 1050);
  assert.equal(placeOf(run(1, 1), 22, "epochs"), 2);
});

Deno.test("a speed-up is what the lessons and the lab report take it for", () => {
  for (const { name, run: one, base, speed_up } of cases) {
    assert.equal(speedUp({ ...run(2, 1), pace: one }, { ...run(1, 1), pace: base }), speed_up, name);
  }
});

Deno.test("scaling is over the run with the fewest ranks, where only ranks and their batch differ", () => {
  const [four, one] = scaling([run(4, 0.5), run(1, 1.5)], RANKS) ?? [];
  assert.deepEqual(one, { speedUp: 1, efficiency: 1 });
  assert.deepEqual(four, { speedUp: 3, efficiency: 0.75 });
  assert.notEqual(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "batch_size" }]), null);
  assert.notEqual(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "time_limit" }]), null);
  assert.notEqual(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "eval_every_steps" }]), null);
  assert.equal(scaling([run(1, 1), run(2, 1)], [...RANKS, { field: "model" }]), null);
  assert.equal(scaling([run(1, 1), run(1, 1)], [{ field: "seed" }]), null);
  assert.equal(scaling([run(1, 1), { ...run(2, 1), pace: null }], RANKS), null);
});

Deno.test("runs are smoothed over as much of the axis, whatever their steps are", () => {
  const heads = [run(1, 0.02, 32), null, run(2, 0.05, 64)];
  assert.equal(spanOn("step", 30, heads), 30);
  assert.equal(spanOn("samples", 30, heads), 1000); // of 30 × 64 = 1,920
  assert.equal(spanOn("time", 30, heads), 1); // of 30 × 0.05 s = 1.5 s
  assert.equal(spanOn("samples", 30, [null]), 0);
  const look = (axis) => chartQuery({ axis, smoothing: 9 });
  assert.deepEqual([look("step").axis, look("step").smooth_over], ["step", "step"]);
  assert.deepEqual([look("epochs").axis, look("epochs").smooth_over], ["step", "samples"]);
  assert.deepEqual([look("time").axis, look("time").smooth_over], ["time", "time"]);
});
