import assert from "node:assert/strict";

import { checkpointText, describe, EventFilter } from "../../../assets/js/run/history.js";

/** Returns the `seq` of each listed event. */
function listed(marks) {
  const filter = new EventFilter();
  /** @type {Set<number>} */
  const shown = new Set();
  marks.forEach((mark, seq) => {
    const { isNew, replaces } = filter.take({ seq, ...mark });
    if (replaces !== null) shown.delete(replaces);
    if (isNew) shown.add(seq);
  });
  return [...shown];
}
const state = (name, reason = "") => ({ kind: "state", state: name, reason });
const saved = (step, reason) => ({ kind: "checkpoint", step, reason });
const answer = (name, message = "", accepted = true, step = 1) => ({
  kind: "command",
  name,
  message,
  accepted,
  step,
});

Deno.test("a stop is one entry, with the checkpoint that it saved", () => {
  const marks = [
    state("stopping"),
    saved(9, "stop"),
    answer("stop"),
    state("stopped", "Stopped after step 9."),
  ];
  assert.deepEqual(listed(marks.slice(0, 1)), [0]);
  assert.deepEqual(listed(marks), [1, 3]);
});

Deno.test("a pause, a resume and a checkpoint are one entry each", () => {
  assert.deepEqual(listed([answer("pause"), state("paused"), answer("resume"), state("running")]), [1, 3]);
  assert.deepEqual(listed([saved(9, "button"), answer("checkpoint", "", true, 9)]), [0]);
  assert.deepEqual(listed([saved(9, "schedule"), answer("checkpoint", "", true, 9)]), [0, 1]);
});

Deno.test("a refused command is one entry, and a later stop replaces only its own", () => {
  const refused = [state("stopping"), answer("stop", "No space.", false), state("running", "No space.")];
  assert.deepEqual(listed(refused), [0, 1]);
  assert.deepEqual(listed([...refused, state("stopping"), state("stopped")]), [0, 1, 4]);
  assert.deepEqual(listed([answer("set_lr"), answer("slow_rank"), state("stopped")]), [0, 1, 2]);
});

Deno.test("a finding of the review is an event of its own, not one of a newer version", () => {
  const finding = { kind: "finding", level: "mistake", message: "Ranks see the same samples." };
  assert.deepEqual(describe(finding), ["warning", "The review of the code: Ranks see the same samples."]);
  assert.match(describe({ kind: "from_the_future" })[1], /from a newer version/);
  const text = (reason) => checkpointText({ step: 1210, size_bytes: 2_500_000, reason });
  assert.equal(text("button"), "checkpoint at step 1,210, on request, 2.5 MB");
});
