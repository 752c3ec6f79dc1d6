import assert from "node:assert/strict";

import { GrowingAxis } from "../../../assets/js/charts/axes.js";

/** Runs a test with a clock that advances only when it is set. */
function withClock(test) {
  const real = performance.now;
  let now_ms = 0;
  performance.now = () => now_ms;
  try {
    test((seconds) => {
      now_ms = seconds * 1000;
    });
  } finally {
    performance.now = real;
  }
}

Deno.test("the end stands still while the curve is before it, and moves when it is reached", () => {
  withClock((setClock) => {
    const axis = new GrowingAxis();
    setClock(1);
    const end = axis.endFor(100);
    assert.equal(end, 200);
    setClock(2);
    assert.equal(axis.endFor(150), end);
    assert.equal(axis.endFor(200), end);
    assert.ok(axis.endFor(201) > 201);
  });
});

Deno.test("a slow curve leaves an eighth of its length free, a fast one eight seconds of its pace", () => {
  withClock((setClock) => {
    const axis = new GrowingAxis();
    setClock(10_000);
    assert.equal(axis.endFor(1000), 1125);
    setClock(10_010);
    assert.equal(axis.endFor(1500), 1500 + 50 * 8);
  });
});

Deno.test("an end far beyond the curve is taken back: another run, another axis", () => {
  withClock((setClock) => {
    const axis = new GrowingAxis();
    setClock(1);
    axis.endFor(1000);
    assert.ok(axis.endFor(10) <= 20);
  });
});
