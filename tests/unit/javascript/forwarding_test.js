import assert from "node:assert/strict";

import { forwardingWords as words } from "../../../assets/js/run/header/progress.js";

const STATE = {
  phase: "following",
  step: 1200,
  error: null,
  retry_unix_s: null,
  where: "http://127.0.0.1:5000",
  is_alive: true,
  command: "python -m trainers.forward runs/a",
};

Deno.test("the line has the last step, or the error and when it is tried again", () => {
  assert.equal(words("MLflow", STATE), "MLflow: forwarded up to step 1,200 (http://127.0.0.1:5000).");
  const failing = { ...STATE, phase: "retrying", error: "It does not answer.", retry_unix_s: 1_700_000_000 };
  assert.match(
    words("MLflow", failing),
    /^MLflow: forwarded up to step 1,200\. It does not answer\. Trying again at .+\. The run is not affected\.$/,
  );
});

Deno.test("a run that is forwarded completely says where it is", () => {
  assert.equal(
    words("MLflow", { ...STATE, phase: "done", is_alive: false }),
    "MLflow: everything is forwarded (http://127.0.0.1:5000).",
  );
});

Deno.test("what is missing comes with the command that sends it", () => {
  const given = words("MLflow", { ...STATE, phase: "given_up", error: "It is down", is_alive: false });
  const killed = words("MLflow", { ...STATE, is_alive: false });
  const never = words("MLflow", { ...STATE, phase: undefined, is_alive: false });
  assert.match(given, /up to step 1,200, then it gave up: It is down\. /);
  assert.match(killed, /its process has ended early/);
  assert.match(never, /has not begun/);
  for (const line of [given, killed, never]) assert.ok(line.endsWith(STATE.command));
});
