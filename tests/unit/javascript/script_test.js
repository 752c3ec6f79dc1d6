import assert from "node:assert/strict";

import { changedLines, tokensOf } from "../../../assets/js/script/as_code.js";
import { errorLine, parametersText } from "../../../assets/js/run/script_panel.js";
import { withoutCommonFolder } from "../../../assets/js/script/page.js";
import { commandLine, quoted } from "../../../assets/js/script/start_card.js";

const option = (flag, more = {}) => ({ flag, kind: "text", default: null, is_positional: false, ...more });

Deno.test("only options that differ from their default are on the command line", () => {
  const options = [
    option("--lr", { kind: "number", default: 0.1 }),
    option("--epochs", { kind: "whole", default: 3 }),
    option("--verbose", { kind: "switch" }),
    option("data", { is_positional: true }),
  ];
  const values = { "--lr": "0.1", "--epochs": "5", "--verbose": true, data: "my data" };
  assert.equal(commandLine(options, values), "--epochs 5 --verbose 'my data'");
  const list = { flag: "--milestones", kind: "whole", default: "10 20", is_list: true };
  assert.equal(commandLine([list], { "--milestones": "5  15" }), "--milestones 5 15");
  assert.equal(commandLine(options, { "--lr": "0.1", "--epochs": "", "--verbose": false }), "");
});

Deno.test("an argument is quoted as for a shell", () => {
  assert.equal(quoted("a/b.c=1"), "a/b.c=1");
  assert.equal(quoted("it's"), `'it'"'"'s'`);
});

Deno.test("the line of an error is the last one in the script's own file", () => {
  const traceback = `  File "/runs/x/code/train.py", line 3, in <module>
  File "/lib/torch/nn.py", line 9, in forward
  File "/runs/x/code/train.py", line 12, in shifted`;
  assert.equal(errorLine(traceback, "train.py"), 12);
  assert.equal(errorLine(traceback, "other.py"), null);
  assert.equal(errorLine(null, "train.py"), null);
});

Deno.test("a folder that contains all files is left out", () => {
  assert.deepEqual(withoutCommonFolder({ "a/x.py": "1", "a/b/y.py": "2" }), { "x.py": "1", "b/y.py": "2" });
  assert.deepEqual(withoutCommonFolder({ "a/x.py": "1", "y.py": "2" }), { "a/x.py": "1", "y.py": "2" });
});

Deno.test("parameter groups and gradient buckets are shown where there are any", () => {
  assert.equal(parametersText({ replaced: [] }), "");
  assert.equal(parametersText({ groups: [{ lr: 0.1, num_parameters: 5 }], buckets: [] }), "");
  const groups = [
    { lr: 0.1, num_parameters: 1200 },
    { lr: null, num_parameters: 5 },
  ];
  assert.equal(
    parametersText({ groups, buckets: [2500] }),
    "Learning rate of each parameter group: 0.1 (1,200 parameters), ? (5 parameters). DDP averages the gradients in 1 bucket: 2.5 kB.",
  );
});

const lines = (text, signs = "") => text.split("\n").map((line, place) => [signs[place] ?? " ", line]);

Deno.test("changed and inserted lines are marked; moved, empty and single-device lines are not", () => {
  const changed = (before, after) => [...changedLines(lines(before), lines(after))];
  assert.deepEqual(changed("a\nb = 1\nc", "a\nb = 2\nc"), [1]);
  assert.deepEqual(changed("a\nb", "a\n\nx\ny\nb"), [2, 3]);
  assert.deepEqual(changed("a\nx\nb", "a\nb"), []);
  const before = lines("a\nold\nb", " - ");
  assert.deepEqual([...changedLines(before, lines("a\nother\nb\nc", " -  "))], [3]);
});

Deno.test("comments, texts and keywords are told apart, and a docstring of several lines is one text", () => {
  const found = tokensOf('for x in "a # b":  # in', { isOpen: false });
  const kinds = found.filter(([kind]) => kind).map(([kind]) => kind);
  assert.deepEqual(kinds, ["keyword", "keyword", "string", "comment"]);
  assert.equal(found.map(([, text]) => text).join(""), 'for x in "a # b":  # in');
  const inText = { isOpen: false };
  const first = ['"""One.', "import x", '"""', "import x"].map((line) => tokensOf(line, inText)[0][0]);
  assert.deepEqual(first, ["string", "string", "string", "keyword"]);
});
