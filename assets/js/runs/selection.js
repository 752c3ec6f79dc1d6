// The bar for selected runs with the actions that apply to all of them.

import { count } from "../shared/format.js";
import { el, setAttribute, setText, show } from "../shared/dom.js";
import { toggleMenu } from "../shared/dialog.js";
import { comparePage } from "../shared/net.js";
import { exportLinks, MAX_COMPARED, MAX_EXPORTED, runAgainPage } from "./actions.js";

export class SelectionBar {
  /**
   * `mayChange(runId)` is true if the user may change a run; `onCompare(href)`, `onEdit(runId)`,
   * `onDelete(runIds)`, `onClear()` are called on clicks.
   */
  constructor({ mayChange, onCompare, onEdit, onDelete, onClear }) {
    this.mayChange = mayChange;
    /** @type {string[]} */
    this.runIds = [];
    this.count = el("strong", { role: "status" });
    this.compare = el("a", { class: "ddp-button ddp-button-main ddp-button-small" }, "Compare");
    this.compare.addEventListener("click", (event) => {
      event.preventDefault();
      if (this.compare.href) onCompare(this.compare.href);
    });
    this.again = el("a", { class: "ddp-button ddp-button-small" }, "Run again with changes");
    this.edit = button("Rename, tag, note", () => onEdit(this.runIds[0]));
    this.export = button("Export", () => toggleMenu(this.export, exportLinks(this.runIds)));
    this.export.setAttribute("aria-haspopup", "true");
    this.remove = button("Delete", () => onDelete(this.runIds));
    this.hint = el("span", { class: "ddp-hint" });
    this.element = el(
      "div",
      { class: "ddp-selection", role: "region", "aria-label": "Selected runs", hidden: true },
      this.count, this.compare, this.edit, this.again, this.export, this.remove, button("Clear", onClear), this.hint,
    ); // prettier-ignore
  }

  update(selected) {
    this.runIds = [...selected];
    const num = this.runIds.length;
    show(this.element, num > 0);
    setText(this.count, num === 1 ? "1 run selected" : `${count(num)} runs selected`);
    const canCompare = num >= 2 && num <= MAX_COMPARED;
    setAttribute(this.compare, "href", canCompare ? comparePage(this.runIds) : null);
    setAttribute(this.compare, "aria-disabled", canCompare ? null : "true");
    const tooMany = num > MAX_COMPARED ? `Up to ${MAX_COMPARED} can be compared.` : "";
    setText(this.hint, num === 1 ? `Select up to ${MAX_COMPARED} to compare them.` : tooMany);
    show(this.again, num === 1);
    const areMine = this.runIds.every((runId) => this.mayChange(runId));
    show(this.edit, num === 1 && areMine);
    this.remove.disabled = !areMine;
    setAttribute(
      this.remove,
      "title",
      areMine ? null : "Only their owners or a teacher can delete these runs.",
    );
    if (num === 1) this.again.href = runAgainPage(this.runIds[0]);
    this.export.disabled = num > MAX_EXPORTED;
    setAttribute(this.export, "title", num > MAX_EXPORTED ? `At most ${MAX_EXPORTED} runs at once.` : null);
  }
}

function button(words, onclick) {
  return el("button", { type: "button", class: "ddp-button ddp-button-small", onclick }, words);
}
