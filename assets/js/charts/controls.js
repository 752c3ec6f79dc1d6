// What is chosen for a chart: small selects beside its title.

import { el } from "../shared/dom.js";

/**
 * A select whose value is told when another is chosen.
 * @param {string} label
 * @param {[string, string][]} options values and their words
 * @param {string} chosen
 * @param {(value: string) => void} onChoose
 */
export function select(label, options, chosen, onChoose) {
  const made = el("select", { "aria-label": label, title: label, class: "ddp-select-small" });
  made.append(...options.map(([value, words]) => el("option", { value, selected: value === chosen }, words)));
  made.addEventListener("change", () => onChoose(made.value));
  return made;
}
