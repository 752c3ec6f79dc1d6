import assert from "node:assert/strict";

import { fitted, roomFor } from "../../../assets/js/charts/axes.js";

const LAYOUT = {
  font: { size: 12 },
  showlegend: false,
  margin: { l: 58, r: 20, t: 30, b: 42 },
  xaxis: { title: { text: "optimizer step" } },
  yaxis: { title: { text: "share predicted right" } },
};

Deno.test("a chart of the page has room for all that is written", () => {
  const room = roomFor(900, 336, 12);
  assert.deepEqual(room, { isNarrow: false, isLow: false, numPlaces: 6, numTicks: 6, titleLetters: 51 });
  const { margin, xaxis, yaxis } = fitted(LAYOUT, room);
  assert.deepEqual(margin, LAYOUT.margin);
  assert.equal(xaxis.title.text, "optimizer step");
  assert.equal(yaxis.title.text, "share predicted right");
});

Deno.test("a low chart with large text has fewer ticks, and only the titles that fit", () => {
  const room = roomFor(400, 230, 23);
  assert.equal(room.isNarrow, true);
  assert.equal(room.isLow, true);
  assert.equal(room.numTicks, 3);
  const { margin, xaxis, yaxis } = fitted({ ...LAYOUT, font: { size: 23 } }, room);
  assert.equal(xaxis.title, undefined);
  assert.equal(yaxis.title, undefined);
  assert.ok(margin.t < LAYOUT.margin.t && margin.l === LAYOUT.margin.l);
  assert.equal(fitted({ ...LAYOUT, showlegend: true }, room).margin.t, LAYOUT.margin.t);
});

Deno.test("a projector's chart has a short legend: its rows would take most of the height", () => {
  assert.equal(roomFor(830, 323, 17).isNarrow, true);
});

Deno.test("ticks of a narrow chart stand beside each other", () => {
  const room = roomFor(300, 230, 22);
  assert.equal(room.numPlaces, 2);
  assert.equal(fitted(LAYOUT, room).xaxis.nticks, 2);
  assert.equal(roomFor(330, 336, 12).numPlaces, 4);
});

Deno.test("a chart has at least two ticks, however low it is", () => {
  assert.equal(roomFor(400, 0, 12).numTicks, 2);
});
