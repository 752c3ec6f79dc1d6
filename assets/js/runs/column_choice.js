// The visible columns of the list: chosen by the user and stored in this browser, or as many as fit.

import { toggleMenu } from "../shared/dialog.js";
import { el, setAttribute } from "../shared/dom.js";
import { prefer, preference } from "../shared/prefs.js";
import { COLUMNS } from "./columns.js";

const STORAGE_KEY = "runs-columns";
const CHOOSABLE = COLUMNS.filter(({ key }) => key !== "name");
// Hidden in this order when not all columns fit.
const HIDDEN_FIRST = ["took", "ranks", "dataset", "model", "curve", "loss", "progress", "started", "owner"];
// Widths in rem: the checkbox, the minimum of the name, the menu, the gap, and the padding at both ends.
const [SELECT, NAME, MENU, GAP, ENDS] = [1.8, 10, 2.2, 0.75, 0.8];

export class ColumnChoice {
  /** `onChange()` is called when the user changes the columns. */
  constructor(onChange) {
    this.onChange = onChange;
    this.hasOwners = false;
    this.shown = new Set();
    this.button = el(
      "button",
      {
        type: "button",
        class: "ddp-button ddp-column-choice",
        "aria-expanded": "false",
        onclick: () => this.openMenu(),
      },
      "Columns",
    );
  }

  openMenu() {
    const usual = el(
      "button",
      { type: "button", class: "ddp-menu-usual", onclick: () => this.choose(null) },
      "As many as fit",
    );
    toggleMenu(this.button, [...this.offered().map((column) => this.box(column)), usual]);
  }

  box({ key, title }) {
    const box = el("input", { type: "checkbox", checked: this.shown.has(key) });
    box.addEventListener("change", () => {
      const chosen = new Set(this.shown);
      if (box.checked) chosen.add(key);
      else chosen.delete(key);
      this.choose([...chosen]);
    });
    return el("label", {}, box, title);
  }

  choose(keys) {
    prefer(STORAGE_KEY, keys);
    this.onChange();
  }

  /** The available columns: owners only if the page has a login. */
  offered() {
    return CHOOSABLE.filter(({ key }) => key !== "owner" || this.hasOwners);
  }

  /** Sets the columns of a list; `width` is its width in rem. */
  layOut(list, width) {
    const offered = this.offered();
    const chosen = preference(STORAGE_KEY, null);
    let shown = Array.isArray(chosen) ? offered.filter(({ key }) => chosen.includes(key)) : offered;
    if (!Array.isArray(chosen)) {
      for (const key of HIDDEN_FIRST) {
        if (leastWidth(shown) <= width) break;
        shown = shown.filter((column) => column.key !== key);
      }
    }
    this.shown = new Set(shown.map(({ key }) => key));
    const hidden = CHOOSABLE.filter(({ key }) => !this.shown.has(key)).map(({ key }) => key);
    setAttribute(list, "data-hides", hidden.join(" "));
    setAttribute(list, "data-is-wide", leastWidth(shown) > width);
    const widths = shown.map(track).join(" ");
    list.style.setProperty("--columns", `${SELECT}rem minmax(${NAME}rem, 1fr) ${widths} ${MENU}rem`);
    list.style.setProperty("--least", `${leastWidth(shown)}rem`);
  }
}

/** @param {{ width?: number, grows?: number }} column */
function track({ width, grows }) {
  return grows ? `minmax(${width}rem, ${grows}fr)` : `${width}rem`;
}

function leastWidth(columns) {
  const parts = [SELECT, NAME, MENU, ENDS, ...columns.map(({ width }) => width + GAP)];
  return parts.reduce((sum, width) => sum + width, 2 * GAP);
}
