import assert from "node:assert/strict";

import {
  facetValues,
  filterFromAddress,
  isFiltering,
  matcher,
  CURRENT_USER,
} from "../../../assets/js/runs/filter.js";

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
const shows = (search, row = ROW, me = "") => matcher({ ...filterFromAddress(search), me })(row);

Deno.test("an address without a query shows everything, the newest first", () => {
  const filter = filterFromAddress("");
  assert.equal(filter.sort, "-started");
  assert.equal(isFiltering(filter), false);
  assert.equal(shows(""), true);
});

Deno.test("every word must be found somewhere, whatever its case", () => {
  assert.equal(shows("?q=FIRST+warm-up"), true);
  assert.equal(shows("?q=first+second"), false);
  assert.equal(isFiltering(filterFromAddress("?q=first")), true);
});

Deno.test("a run that goes on is live, whatever its state; a finished one is not", () => {
  assert.equal(shows("?state=live"), true);
  assert.equal(shows("?state=live", { ...ROW, state: "queued" }), true);
  assert.equal(shows("?state=live", { ...ROW, state: "finished" }), false);
  assert.equal(shows("?state=paused"), false);
});

Deno.test("mine are those of whoever looks", () => {
  const search = `?owner=${encodeURIComponent(CURRENT_USER)}`;
  assert.equal(shows(search, ROW, "ada"), true);
  assert.equal(shows(search, ROW, "grace"), false);
});

Deno.test("facets hold together: each that is chosen must suit", () => {
  assert.equal(shows("?model=cnn&dataset=mnist&tag=lecture"), true);
  assert.equal(shows("?model=cnn&dataset=mnist&tag=exam"), false);
});

Deno.test("the values of a facet are counted, and named by the label", () => {
  const other = { ...ROW, run_id: "r2", owner: "", tags: [], dataset: "digits", dataset_label: "Digits" };
  const found = facetValues(
    new Map([
      ["r1", ROW],
      ["r2", other],
    ]),
  );
  assert.deepEqual(found.model.get("cnn"), { label: "CNN", count: 2 });
  assert.deepEqual([...found.dataset.keys()], ["mnist", "digits"]);
  assert.deepEqual([...found.owner.keys()], ["ada"]);
  assert.equal(found.tag.get("lecture").count, 1);
});
