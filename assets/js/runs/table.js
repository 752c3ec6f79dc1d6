// The table of runs and its rows.

import { el, makeButton, setAttribute, setText, show, showText } from "../shared/dom.js";
import { ordinal } from "../shared/format.js";
import { runPage } from "../shared/net.js";
import { StatePill } from "../shared/widgets.js";
import { COLUMNS, ColumnChoice, brokenBadge, cellOf, comparer, fillCells, makeCells } from "./columns.js";
import { matcher } from "./filter.js";
import { importedBadge } from "./actions.js";

// A row of the list; on a phone a card.

class RunRow {
  /** `onSelect(runId, isSelected)`, `onMenu(row, button)`. */
  constructor(runId, { onSelect, onMenu }) {
    this.box = el("input", { type: "checkbox", onchange: () => onSelect(runId, this.box.checked) });
    this.link = el("a", { href: runPage(runId), class: "ddp-run-name" });
    this.tags = el("span", { class: "ddp-tags" });
    this.note = el("span", { class: "ddp-note-line" });
    this.pill = new StatePill();
    // No live region: with thousands of rows, screen readers would announce every change.
    this.pill.element.removeAttribute("role");
    this.pill.element.removeAttribute("aria-live");
    const onclick = () => onMenu(this.row, this.menu);
    this.menu = makeButton({ class: "ddp-more-button", "aria-haspopup": "true", onclick }, "⋯");
    this.cells = makeCells();
    this.cells.name.append(this.link, el("small", {}, this.tags, this.note));
    this.position = el("small", { hidden: true });
    this.cells.state.append(this.pill.element, this.position);
    this.element = el(
      "div",
      { role: "row", class: "ddp-list-row", "data-run": runId },
      cellOf("select", el("label", {}, this.box)),
      COLUMNS.map(({ key }) => this.cells[key]),
      cellOf("menu", this.menu),
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
    const badges = [brokenBadge(row.mistake, true), importedBadge(row.imported)];
    this.tags.replaceChildren(
      ...badges.filter((badge) => badge !== null),
      ...row.tags.map((tag) => el("span", { class: "ddp-tag" }, tag)),
    );
    const text = row.note.split("\n")[0] || (row.name === row.run_id ? "" : row.run_id);
    setText(this.note, text);
    setAttribute(this.note, "title", row.note || null);
    show(this.tags, this.tags.childElementCount > 0);
    this.pill.update(row.state, false, row.detail);
    const by = row.detail ? row.detail.slice(row.detail.indexOf(" ") + 1) : "";
    const queuePosition = row.state === "queued" && row.place ? `${ordinal(row.place)} in the queue` : by;
    showText(this.position, queuePosition);
    setAttribute(this.cells.state, "title", row.error);
    fillCells(this.cells, row);
  }
}

/** The header of the table: a click on a title sorts by its column. */
class ListHead {
  constructor({ onSort, onSelectAll }) {
    const onchange = () => onSelectAll(this.all.checked);
    this.all = el("input", { type: "checkbox", "aria-label": "Select all runs shown", onchange });
    const cell = (key, inside) => el("div", { role: "columnheader", class: `ddp-cell-${key}` }, inside);
    this.titles = COLUMNS.map((column) => {
      const arrow = el("span", { class: "ddp-sort-arrow", "aria-hidden": "true" });
      const inside = column.value
        ? makeButton({ onclick: () => onSort(column), "data-term": column.term }, column.title, arrow)
        : column.title;
      return { column, arrow, element: cell(column.key, inside) };
    });
    this.element = el(
      "div",
      { role: "row", class: "ddp-list-head", "aria-rowindex": 1 },
      cell("select", el("label", {}, this.all)),
      this.titles,
      cell("menu", el("span", { class: "ddp-unseen" }, "Actions")),
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
function isCards() {
  return window.matchMedia("(max-width: 700px)").matches;
}

// The table of runs. Only rows near the viewport are in the DOM, because there can be thousands.

// Must equal the heights in css/runs/page.css.
const ROW_PX = 60;
const CARD_PX = 204;
const EXTRA_ROWS = 6;

export class RunsTable {
  /** `selected`: run ids. `onSort(column)`, `onSelection(selected)`, `onMenu(row, button)`. */
  constructor({ selected, onSort, onSelection, onMenu }) {
    this.onSelection = onSelection;
    this.onMenu = onMenu;
    this.rows = new Map();
    this.order = [];
    this.selected = new Set(selected);
    this.drawn = new Map();
    this.columns = new ColumnChoice(() => this.layOutColumns());
    this.head = new ListHead({ onSort, onSelectAll: (isAll) => this.selectAll(isAll) });
    this.body = el("div", { role: "rowgroup", class: "ddp-list-body" });
    this.element = el(
      "div",
      { role: "table", class: "ddp-list", "aria-label": "Runs" },
      el("div", { role: "rowgroup", class: "ddp-list-top" }, this.head),
      this.body,
    );
    this.onMove = () => this.schedule();
    window.addEventListener("scroll", this.onMove, { passive: true });
    this.size = new ResizeObserver(() => {
      this.layOutColumns();
      this.schedule();
    });
    this.size.observe(this.element);
  }

  layOutColumns() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    if (this.element.clientWidth > 0) this.columns.layOut(this.element, this.element.clientWidth / rem);
  }

  /** Sorts all rows again after the filter or the sort order changed. */
  arrange(filter) {
    this.filter = filter;
    const fits = matcher(filter);
    this.order = [...this.rows.values()]
      .filter(fits)
      .sort(comparer(filter.sort))
      .map((row) => row.run_id);
    this.draw();
  }

  /** Applies new rows. Rows already in the list keep their position even if their sort keys changed. */
  take(rows, filter, isWhole) {
    const isFirst = this.rows.size === 0;
    this.rows = rows;
    for (const runId of this.selected) if (!rows.has(runId)) this.selected.delete(runId);
    if (isFirst || isWhole) {
      this.arrange(filter);
    } else {
      const anchor = this.anchor();
      this.order = merged(this.order, rows, filter);
      this.draw();
      this.holdStill(anchor);
    }
    this.onSelection(this.selected);
  }

  selectAll(isAll) {
    for (const runId of this.order) this.mark(runId, isAll);
    this.drawSelection();
  }

  clearSelection() {
    this.selected.clear();
    this.drawSelection();
  }

  select(runId, isSelected) {
    this.mark(runId, isSelected);
    this.drawSelection();
  }

  mark(runId, isSelected) {
    if (isSelected) this.selected.add(runId);
    else this.selected.delete(runId);
  }

  drawSelection() {
    this.draw();
    this.onSelection(this.selected);
  }

  /** Draws before the next frame, at most once per frame. */
  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.draw();
    });
  }

  draw() {
    const size = isCards() ? CARD_PX : ROW_PX;
    const height = `${this.order.length * size}px`;
    if (this.body.style.height !== height) this.body.style.height = height;
    setAttribute(this.element, "aria-rowcount", this.order.length + 1);
    this.head.update(this.filter?.sort ?? "", this.numSelectedShown(), this.order.length);
    const top = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / size) - EXTRA_ROWS);
    const last = Math.min(this.order.length, Math.ceil((window.innerHeight - top) / size) + EXTRA_ROWS);
    const visibleRows = new Set(this.order.slice(first, Math.max(first, last)));
    for (const [runId, row] of this.drawn) {
      if (visibleRows.has(runId) || (this.rows.has(runId) && row.element.contains(document.activeElement))) {
        continue;
      }
      row.element.remove();
      this.drawn.delete(runId);
    }
    let before = null;
    for (let index = first; index < last; index += 1) {
      before = this.place(this.order[index], index, index * size, before);
    }
  }

  /** Places a row after the previous one: the DOM order determines the order of the Tab key. */
  place(runId, index, top, before) {
    const onSelect = (id, isSelected) => this.select(id, isSelected);
    const row = this.drawn.get(runId) ?? new RunRow(runId, { onSelect, onMenu: this.onMenu });
    this.drawn.set(runId, row);
    row.update(this.rows.get(runId), index, this.selected.has(runId), top);
    const next = before ? before.nextSibling : this.body.firstChild;
    if (row.element !== next) this.body.insertBefore(row.element, next);
    return row.element;
  }

  numSelectedShown() {
    if (this.selected.size === 0) return 0;
    return this.order.reduce((sum, runId) => sum + this.selected.has(runId), 0);
  }

  /** The first visible row and its height, if the list is scrolled; otherwise null. */
  anchor() {
    const size = isCards() ? CARD_PX : ROW_PX;
    const top = this.body.getBoundingClientRect().top;
    return top < 0 ? { runId: this.order[Math.floor(-top / size)], size } : null;
  }

  /** Scrolls so that visible rows keep their position after rows were added or removed above. */
  holdStill(anchor) {
    if (!anchor) return;
    const was = this.anchor();
    const index = this.order.indexOf(anchor.runId);
    if (was && index >= 0) window.scrollBy(0, (index - this.order.indexOf(was.runId)) * anchor.size);
  }

  /** Shows the owner of each run, if the page has a login. */
  showOwners(areShown) {
    setAttribute(this.element, "data-has-owners", areShown);
    this.columns.hasOwners = areShown;
    this.layOutColumns();
  }

  show(isShown) {
    show(this.element, isShown);
    if (!isShown) return;
    this.layOutColumns();
    this.draw();
  }

  close() {
    window.removeEventListener("scroll", this.onMove);
    this.size.disconnect();
  }
}

/**
 * The previous order without rows that are gone or no longer match, with new rows inserted by the sort order.
 */
function merged(order, rows, filter) {
  const fits = matcher(filter);
  const compare = comparer(filter.sort);
  const matching = order.filter((runId) => rows.has(runId) && fits(rows.get(runId)));
  const held = new Set(matching);
  const fresh = [...rows.values()].filter((row) => !held.has(row.run_id) && fits(row));
  if (fresh.length > 50) {
    return [...matching.map((runId) => rows.get(runId)), ...fresh].sort(compare).map((row) => row.run_id);
  }
  for (const row of fresh) {
    const position = matching.findIndex((runId) => compare(row, rows.get(runId)) < 0);
    matching.splice(position < 0 ? matching.length : position, 0, row.run_id);
  }
  return matching;
}
