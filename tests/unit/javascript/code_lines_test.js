import assert from "node:assert/strict";

import { changedLines, tokensOf } from "../../../assets/js/script/as_code.js";

const lines = (text, signs = "") => text.split("\n").map((line, place) => [signs[place] ?? " ", line]);
const changed = (before, after) => [...changedLines(lines(before), lines(after))];

Deno.test("a line with another number is changed, and no other one", () => {
  assert.deepEqual(changed("a\nb = 1\nc", "a\nb = 2\nc"), [1]);
  assert.deepEqual(changed("a\nb", "a\nb"), []);
});

Deno.test("inserted lines are changed, those that move down are not, and empty ones never are", () => {
  assert.deepEqual(changed("a\nb", "a\n\nx\ny\nb"), [2, 3]);
  assert.deepEqual(changed("a\nx\nb", "a\nb"), []);
});

Deno.test("lines of a single device do not count, and places are those of the list", () => {
  const before = lines("a\nold\nb", " - ");
  const after = lines("a\nother\nb\nc", " -  ");
  assert.deepEqual([...changedLines(before, after)], [3]);
});

Deno.test("comments, texts and keywords are told apart", () => {
  const found = tokensOf('for x in "a # b":  # in', { isOpen: false });
  assert.deepEqual(
    found.filter(([kind]) => kind),
    [
      ["keyword", "for"],
      ["keyword", "in"],
      ["string", '"a # b"'],
      ["comment", "# in"],
    ],
  );
  assert.equal(found.map(([, text]) => text).join(""), 'for x in "a # b":  # in');
});

Deno.test("a docstring of several lines is one text", () => {
  const inText = { isOpen: false };
  const kinds = ['"""One.', "import x", '"""', "import x", '"""Whole."""'].map(
    (line) => tokensOf(line, inText)[0][0],
  );
  assert.deepEqual(kinds, ["string", "string", "string", "keyword", "string"]);
});
