// Controls of a chart: small selects next to its title, and its toolbar.

import { el } from "../shared/dom.js";

/**
 * A select that calls `onChoose` with the new value.
 * @param {string} label
 * @param {[string, string][]} options values and their labels
 * @param {string} chosen
 * @param {(value: string) => void} onChoose
 */
export function select(label, options, chosen, onChoose) {
  const made = el("select", { "aria-label": label, title: label, class: "ddp-select-small" });
  made.append(...options.map(([value, words]) => el("option", { value, selected: value === chosen }, words)));
  made.addEventListener("change", () => onChoose(made.value));
  return made;
}

/** @type {WeakSet<HTMLElement>} Toolbars that already have a key listener. */
const withKeys = new WeakSet();

/**
 * Makes the buttons of a toolbar one stop of the Tab key; arrow keys, Home and End move between them.
 * @param {HTMLElement | null} toolbar
 * @param {string} label
 */
export function oneTabStop(toolbar, label) {
  const buttons = [...(toolbar?.querySelectorAll("button") ?? [])];
  if (!toolbar || buttons.filter(({ tabIndex }) => tabIndex === 0).length < 2) return;
  for (const button of buttons.slice(1)) button.tabIndex = -1;
  toolbar.role = "toolbar";
  toolbar.ariaLabel = label;
  if (withKeys.has(toolbar)) return; // Plotly replaced only the buttons
  withKeys.add(toolbar);
  toolbar.addEventListener("keydown", (event) => {
    const now = [...toolbar.querySelectorAll("button")];
    const at = now.findIndex((button) => button === document.activeElement);
    const { length } = now;
    const to = { ArrowRight: at + 1, ArrowLeft: at + length - 1, Home: 0, End: length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    for (const [index, button] of now.entries()) button.tabIndex = index === to % length ? 0 : -1;
    now[to % length].focus();
  });
}
