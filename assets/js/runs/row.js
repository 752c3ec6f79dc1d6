// A row of the list; on a phone a card.

import { brokenBadge } from "./broken.js";
import { el, setAttribute, setText, show } from "../shared/dom.js";
import { ordinal } from "../shared/format.js";
import { StatePill } from "../shared/state_pill.js";
import { runPage } from "../shared/net.js";
import { COLUMNS, fillCells, makeCells } from "./columns.js";

export class RunRow {
  /** `onSelect(runId, isSelected)`, `onMenu(row, button)`. */
  constructor(runId, { onSelect, onMenu }) {
    this.box = el("input", { type: "checkbox" });
    this.box.addEventListener("change", () => onSelect(runId, this.box.checked));
    this.link = el("a", { href: runPage(runId), class: "ddp-run-name" });
    this.tags = el("span", { class: "ddp-tags" });
    this.note = el("span", { class: "ddp-note-line" });
    this.pill = new StatePill();
    // No live region: with thousands of rows, screen readers would announce every change.
    this.pill.element.removeAttribute("role");
    this.pill.element.removeAttribute("aria-live");
    this.menu = el("button", { type: "button", class: "ddp-more-button", "aria-haspopup": "true" }, "⋯");
    this.menu.addEventListener("click", () => onMenu(this.row, this.menu));
    this.cells = makeCells();
    this.cells.name.append(this.link, el("small", {}, this.tags, this.note));
    this.place = el("small", { hidden: true });
    this.cells.state.append(this.pill.element, this.place);
    this.element = el(
      "div",
      { role: "row", class: "ddp-list-row", "data-run": runId },
      el("div", { role: "cell", class: "ddp-cell-select" }, el("label", {}, this.box)),
      COLUMNS.map(({ key }) => this.cells[key]),
      el("div", { role: "cell", class: "ddp-cell-menu" }, this.menu),
    );
  }

  /** Shows a row; `index` is its position in the list. */
  update(row, index, isSelected, top) {
    if (this.top !== top) this.element.style.transform = `translateY(${(this.top = top)}px)`;
    setAttribute(this.element, "aria-rowindex", index + 2);
    if (this.box.checked !== isSelected) this.box.checked = isSelected;
    setAttribute(this.element, "data-selected", isSelected);
    if (this.row === row) return;
    this.row = row;
    setAttribute(this.box, "aria-label", `Select ${row.name}`);
    setAttribute(this.menu, "aria-label", `Actions for ${row.name}`);
    setText(this.link, row.name);
    setAttribute(this.link, "title", row.name === row.run_id ? row.run_id : `${row.name} (${row.run_id})`);
    const broken = brokenBadge(row.mistake, true);
    this.tags.replaceChildren(
      ...(broken ? [broken] : []),
      ...row.tags.map((tag) => el("span", { class: "ddp-tag" }, tag)),
    );
    const words = row.note.split("\n")[0] || (row.name === row.run_id ? "" : row.run_id);
    setText(this.note, words);
    setAttribute(this.note, "title", row.note || null);
    show(this.tags, this.tags.childElementCount > 0);
    this.pill.update(row.state, false, row.detail);
    const by = row.detail ? row.detail.slice(row.detail.indexOf(" ") + 1) : "";
    const place = row.state === "queued" && row.place ? `${ordinal(row.place)} in the queue` : by;
    show(this.place, Boolean(place));
    setText(this.place, place);
    setAttribute(this.cells.state, "title", row.error);
    fillCells(this.cells, row);
  }
}

/** The header of the table: a click on a title sorts by its column. */
export class ListHead {
  constructor({ onSort, onSelectAll }) {
    this.all = el("input", { type: "checkbox", "aria-label": "Select all runs shown" });
    this.all.addEventListener("change", () => onSelectAll(this.all.checked));
    this.titles = COLUMNS.map((column) => {
      const arrow = el("span", { class: "ddp-sort-arrow", "aria-hidden": "true" });
      const inside = column.value
        ? el(
            "button",
            { type: "button", onclick: () => onSort(column), "data-term": column.term },
            column.title,
            arrow,
          )
        : column.title;
      return {
        column,
        arrow,
        element: el("div", { role: "columnheader", class: `ddp-cell-${column.key}` }, inside),
      };
    });
    this.element = el(
      "div",
      { role: "row", class: "ddp-list-head", "aria-rowindex": 1 },
      el("div", { role: "columnheader", class: "ddp-cell-select" }, el("label", {}, this.all)),
      this.titles.map((title) => title.element),
      el(
        "div",
        { role: "columnheader", class: "ddp-cell-menu" },
        el("span", { class: "ddp-unseen" }, "Actions"),
      ),
    );
  }

  update(sort, numSelected, numShown) {
    this.all.checked = numShown > 0 && numSelected === numShown;
    this.all.indeterminate = numSelected > 0 && numSelected < numShown;
    const [direction, sign] = sort.startsWith("-") ? ["descending", "▼"] : ["ascending", "▲"];
    for (const { column, arrow, element } of this.titles) {
      if (!column.value) continue;
      const isBy = sort.replace("-", "") === column.key;
      setAttribute(element, "aria-sort", isBy ? direction : "none");
      setText(arrow, isBy ? sign : "");
    }
  }
}

/** True if the list is drawn as cards. */
export function isCards() {
  return window.matchMedia("(max-width: 700px)").matches;
}
