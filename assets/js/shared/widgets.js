// Small parts of several pages: the state of a run, commands and what copies them, tables, legends, fields, and
// the note that the server does not answer.

import { columnHeads, el, icon, makeButton, setAttribute, setText, show, showText } from "./dom.js";
import { state as stateText } from "./format.js";

/** A pill with a run's state: colour, shape and word. */
export class StatePill {
  constructor() {
    this.element = el("span", { class: "ddp-pill", role: "status", "aria-live": "polite" });
  }

  /**
   * `isLossNaN`: the run trains on, or has ended, with a loss of NaN, and is marked as a warning. `detail`:
   * the reason why the processes of a live run are paused, or empty; its first word replaces the state.
   */
  update(state, isLossNaN = false, detail = "") {
    const { dataset } = this.element;
    if (dataset.state === state && "nan" in dataset === isLossNaN && this.detail === detail) return;
    dataset.state = state;
    this.detail = detail;
    if (isLossNaN) dataset.nan = "";
    else delete dataset.nan;
    setAttribute(this.element, "title", detail || null);
    const [shape, word] = detail ? [stateText("paused")[0], detail.split(" ")[0]] : stateText(state);
    this.element.replaceChildren(
      icon(isLossNaN ? "warning" : shape),
      el("span", {}, isLossNaN ? `${word}, loss is NaN` : word),
    );
  }
}

const COPIED_SHOWN_MS = 2000;

/** A command with a Copy button. `label` identifies the command for screen readers. */
export class CommandLine {
  constructor(command, label = "command") {
    this.code = el("code", {}, command);
    this.copy = copyButton(() => this.code.textContent, this.code, label);
    this.element = el(
      "div",
      { class: "ddp-command-line" },
      el("pre", { tabindex: 0, role: "group", "aria-label": label }, this.code),
      this.copy,
    );
  }

  update(command) {
    setText(this.code, command);
  }
}

/**
 * Copies a text to the clipboard. On plain http, where browsers refuse this, selects the text and copies the
 * selection. Returns true if the browser copied it.
 */
async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const fold = shown.closest("details");
    if (fold) fold.open = true; // hidden text cannot be selected
    window.getSelection()?.selectAllChildren(shown);
    return document.execCommand("copy");
  }
}

/** A line that says that the server does not answer. */
export class ConnectionNote {
  constructor() {
    this.element = el("p", { class: "ddp-connection", role: "status", hidden: true });
  }

  /** @param {Error | null} error of the latest request */
  heard(error) {
    showText(this.element, error && `${error.message} Trying again …`);
  }
}

/**
 * A table with a head.
 * @param {HTMLElement | any[]} body the element of its body, or its rows
 * @param {any} caption
 */
export function makeTable(className, heads, body, caption = null) {
  return el(
    "table",
    { class: className },
    caption && el("caption", {}, caption),
    el("thead", {}, el("tr", {}, columnHeads(heads))),
    body instanceof HTMLElement ? body : el("tbody", {}, body),
  );
}

/** A row of a table whose first cell is a heading. @param {string | null} title */
export function tableRow(head, cells, title = null) {
  return el(
    "tr",
    { title },
    el("th", { scope: "row" }, head),
    cells.map((cell) => el("td", {}, cell)),
  );
}

/** A box that scrolls, also with the keyboard. */
export function scrollBox(label, ...children) {
  return el("div", { class: "ddp-scroll", tabindex: 0, role: "group", "aria-label": label }, ...children);
}

/** An entry of a legend: a sample in the colour of a class, and words. */
export function legendEntry(className, ...text) {
  return el("span", {}, el("i", { class: `ddp-part ${className}`, "aria-hidden": "true" }), ...text);
}

/**
 * A button with a text. `variant` names its kinds: "small", "main" or "stop".
 * @param {any} text
 * @param {((event: any) => void) | null} onclick
 */
export function textButton(text, onclick, variant = "", attributes = {}) {
  return makeButton({ class: buttonClass(variant), onclick, ...attributes }, text);
}

/** A link that looks like a button. @param {string} text */
export function buttonLink(text, attributes, variant = "") {
  return el("a", { class: buttonClass(variant), ...attributes }, text);
}

/** @param {string} variant */
function buttonClass(variant) {
  const kinds = variant.split(" ").filter(Boolean);
  return ["ddp-button", ...kinds.map((kind) => `ddp-button-${kind}`)].join(" ");
}

/** A row of buttons. */
export function buttonRow(...children) {
  return el("div", { class: "ddp-buttons" }, children);
}

/** A paragraph that is a caption, a hint, or the text in place of an empty part. @param {string} kind */
export function paragraph(kind, ...children) {
  return el("p", { class: `ddp-${kind}` }, children);
}

/** A collapsed part of the page below its title. @param {string | null} className */
export function collapsed(className, title, ...children) {
  return el("details", { class: className }, el("summary", {}, title), children);
}

/** The options of a select, from pairs of a value and its text. @param {any[][]} pairs @param {any} chosen */
export function optionsOf(pairs, chosen = null) {
  return pairs.map(([value, text]) =>
    el("option", { value, selected: chosen !== null && String(value) === String(chosen) }, text),
  );
}

/** Replaces the options of a select; the chosen value remains if it is still offered. @param {any[][]} pairs */
export function offerOptions(select, pairs) {
  select.replaceChildren(...optionsOf(pairs, select.value));
}

/** A control with its label above it. */
export function field(label, control) {
  return el("label", { class: "ddp-field" }, el("span", {}, label), control);
}

/**
 * A button that copies a text which is shown in an element. `textOf()` returns the text.
 * @param {string | null} label identifies the text for screen readers
 */
export function copyButton(textOf, shown, label = null) {
  const copy = async () => {
    setText(button, (await copyText(textOf(), shown)) ? "Copied" : "Press Ctrl+C");
    setTimeout(() => setText(button, "Copy"), COPIED_SHOWN_MS);
  };
  const button = textButton("Copy", copy, "small", { "aria-label": label && `Copy: ${label}` });
  return button;
}

/**
 * Keeps one row per item, in the order of the items. Rows that remain are reused, so that they keep the focus;
 * the list is hidden without items.
 */
export function updateRows(list, items, keyOf, make, update = (_row, _item) => {}) {
  const rows = new Map([...list.children].map((row) => [row.dataset.key, row]));
  const keys = items.map((item) => String(keyOf(item)));
  for (const [key, row] of rows) if (!keys.includes(key)) row.remove();
  const focused = document.activeElement;
  items.forEach((item, index) => {
    const row = rows.get(keys[index]) ?? make(item);
    row.dataset.key = keys[index];
    if (list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
    update(row, item);
  });
  // Moving an element removes the focus.
  if (focused instanceof HTMLElement && list.contains(focused) && focused !== document.activeElement) {
    focused.focus();
  }
  show(list, items.length > 0);
}
