// Tooltips of glossary terms (docs/glossary.md), for pointer, keyboard and touch.

import { el, makeButton } from "./dom.js";
import { address, fetchJson } from "./net.js";

const MARGIN_PX = 8;
const TERM = "[data-term]";

/** The definitions by term, and the terms of the form's fields; null until the server has responded. */
let glossary = null;
/** The tooltip elements created so far, by term. */
const tips = new Map();
/** The button whose tooltip is shown. */
let shown = null;

/** A term with a tooltip, displayed as `words` if given. */
export function term(name, text = name) {
  return makeButton({ class: "ddp-term", "data-term": name }, text);
}

/** Connects every term on the page to its definition, once the definitions are loaded. */
export function explainTerms() {
  if (glossary === null) return;
  for (const [field, name] of Object.entries(glossary.fields)) {
    markField(document.getElementById(`field-${field}`), name);
  }
  /** @type {NodeListOf<HTMLElement>} */
  const unexplained = document.querySelectorAll(`${TERM}:not([aria-describedby])`);
  for (const button of unexplained) {
    button.setAttribute("aria-describedby", tipOf(button.dataset.term).id);
  }
}

/**
 * Adds a "?" button next to the label of a field: Gradio's labels are plain text and cannot contain a
 * control.
 */
function markField(field, name) {
  if (field === null || field.querySelector(":scope > .ddp-term-mark")) return;
  field.append(
    makeButton({ class: "ddp-term-mark", "data-term": name, "aria-label": "What does this mean?" }, "?"),
  );
}

/** Returns the tooltip of a term; creates it on first use. */
function tipOf(name) {
  if (!tips.has(name)) {
    const id = `ddp-tip-${name.replaceAll(/[^a-zA-Z0-9]+/g, "-")}`;
    const tip = el(
      "div",
      { id, class: "ddp-tip", role: "tooltip", hidden: true },
      el("strong", {}, `${name}: `),
      glossary.definitions[name],
    );
    document.body.append(tip);
    tips.set(name, tip);
  }
  return tips.get(name);
}

function show(button) {
  if (glossary === null || shown === button) return;
  hide();
  shown = button;
  tipOf(button.dataset.term).hidden = false;
  place();
}

function hide() {
  if (shown !== null) tipOf(shown.dataset.term).hidden = true;
  shown = null;
}

/**
 * Puts the tooltip below its term, or above if there is no space below; hides it when the term was removed.
 */
function place() {
  if (shown === null) return;
  if (!shown.isConnected) {
    hide();
    return;
  }
  const tip = tipOf(shown.dataset.term);
  const [at, size] = [shown.getBoundingClientRect(), tip.getBoundingClientRect()];
  const { clientWidth: width, clientHeight: height } = document.documentElement;
  const fitsBelow = at.bottom + size.height + MARGIN_PX <= height;
  tip.style.left = `${Math.max(MARGIN_PX, Math.min(at.left, width - size.width - MARGIN_PX))}px`;
  tip.style.top = `${fitsBelow ? at.bottom : Math.max(MARGIN_PX, at.top - size.height)}px`;
}

function termAt(event) {
  return event.target instanceof Element ? event.target.closest(TERM) : null;
}

/**
 * Shows the term under the pointer or with the focus. A pointer on the tooltip keeps it open; anywhere else
 * hides it.
 */
function follow(event) {
  const button = termAt(event);
  if (button !== null) show(button);
  else if (!(event.target instanceof Element && event.target.closest(".ddp-tip"))) hide();
}

/**
 * Starts to listen for terms; never stops, because every page needs them until it is closed.
 */
export function beginTerms() {
  for (const kind of ["pointerover", "focusin", "pointerdown"]) document.addEventListener(kind, follow);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  window.addEventListener("scroll", place, { capture: true, passive: true });
  window.addEventListener("resize", place);
  fetchJson(address("live/glossary")).then(
    (found) => {
      glossary = found;
      explainTerms();
    },
    (error) => console.error(error),
  );
}
