// Missing packages and features with the commands that install them, and the installed versions.

import { CommandLine } from "../shared/command.js";
import { el, icon, section, setText } from "../shared/dom.js";
import { installLine } from "./install.js";
import { keepRows } from "./parts.js";

/** The section of missing items; problems come first. */
export function missingSection() {
  const lead = el("p", { class: "ddp-caption" });
  const list = el("ul", { class: "ddp-missing-list" });
  const element = section("What is missing, and how to get it", "missing", lead, list);
  return {
    element,
    update({ missing }) {
      setText(lead, leadWords(missing));
      keepRows(list, missing ?? [], keyOf, newItem, () => {});
    },
  };
}

function leadWords(missing) {
  if (missing === null) return "Looking …";
  if (missing.length === 0) return "Nothing is missing: every feature works here.";
  return missing.some((item) => item.is_problem)
    ? "Problems come first; the other items are optional."
    : "Training works. Each of these items is optional.";
}

// The key contains all texts that can change, so that a changed item gets a new row.
function keyOf(item) {
  return `${item.what}\n${item.meaning}\n${item.command}`;
}

function newItem(item) {
  const sign = item.is_problem
    ? el("span", { class: "ddp-missing-sign" }, icon("warning"), " problem")
    : null;
  return el(
    "li",
    { "data-problem": item.is_problem },
    el("h3", {}, item.what, sign),
    el("p", {}, item.meaning),
    item.data_set === null ? null : installLine(item.data_set),
    item.command === null ? null : new CommandLine(item.command, item.what).element,
  );
}

/** The section of versions, for bug reports. */
export function versionsSection() {
  const list = el("dl", { class: "ddp-versions-list" });
  const element = section("Versions", "versions", list);
  let shown = "";
  return {
    element,
    update({ versions }) {
      const words = JSON.stringify(versions);
      if (words === shown) return;
      shown = words;
      const entries = versions.map(({ name, version }) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, version ?? "none here")),
      );
      list.replaceChildren(...entries);
    },
  };
}
