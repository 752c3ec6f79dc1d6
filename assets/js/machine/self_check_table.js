// The table of a machine check: result, description, measurements, and a comparison with the last check.

import { el, icon, setText, show } from "../shared/dom.js";
import { shortTime, number, rate, UNKNOWN } from "../shared/format.js";
import { keepRows } from "./parts.js";

const COLUMNS = ["result", "check", "took", "compared with last time"];
const STATES = {
  waiting: ["wait", "waits"],
  running: ["play", "being checked"],
  passed: ["check", "passed"],
  failed: ["cross", "failed"],
  not_checked: ["question", "could not be checked"],
  skipped: ["square", "skipped"],
  cancelled: ["square", "cancelled"],
};

export class FindingsTable {
  constructor() {
    this.body = el("tbody", {});
    const head = el(
      "tr",
      {},
      COLUMNS.map((title) => el("th", { scope: "col" }, title)),
    );
    const caption = el("caption", {}, "Checks, their results, and the previous results");
    this.element = el(
      "table",
      { class: "ddp-table ddp-findings" },
      caption,
      el("thead", {}, head),
      this.body,
    );
  }

  take(findings) {
    keepRows(this.body, findings, (finding) => finding.id, newRow, updateRow);
    show(this.element, findings.length > 0);
  }
}

function newRow() {
  const row = el("tr", {}, el("td", {}), el("th", { scope: "row" }), el("td", {}), el("td", {}));
  const parts = ["ddp-finding-title", "ddp-finding-words", "ddp-finding-values", "ddp-finding-hint"];
  row.children[1].append(...parts.map((name) => el("span", { class: name })));
  return row;
}

function updateRow(row, finding) {
  const [result, check, took, last] = row.children;
  if (row.dataset.state !== finding.state) {
    row.dataset.state = finding.state;
    const [sign, words] = STATES[finding.state] ?? STATES.not_checked;
    result.replaceChildren(icon(sign), el("span", {}, words));
  }
  const values = finding.values
    .map(({ name, value, unit }) => `${name}: ${inWords(value, unit)}`)
    .join(" · ");
  [finding.title, finding.words, values, finding.hint].forEach((text, index) => {
    setText(check.children[index], text);
    show(check.children[index], text !== "");
  });
  setText(took, finding.seconds === null ? "" : shortTime(finding.seconds));
  setText(last, finding.compared || (finding.seconds === null ? "" : UNKNOWN));
}

function inWords(value, unit) {
  if (unit === "bytes/s") return rate(value);
  return unit === "s" ? shortTime(value) : number(value, 2);
}
