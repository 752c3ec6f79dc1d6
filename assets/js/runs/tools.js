// The tools above the list: search, filters, and the number of runs shown.

import { el, setText, show } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { facetValues, FACETS, isFiltering, MINE } from "./filter.js";

const ALL = {
  state: "All states",
  owner: "All people",
  model: "All models",
  dataset: "All data sets",
  tag: "All tags",
};
const LABELS = { state: "State", owner: "Owner", model: "Model", dataset: "Data set", tag: "Tag" };

export class ListTools {
  /** `onChange(values)` receives the changed parts of the filter. */
  constructor(filter, onChange) {
    this.offered = null;
    this.filter = null;
    this.search = el("input", {
      type: "search",
      class: "ddp-search",
      placeholder: "Search names, tags, notes …",
      "aria-label": "Search the runs",
      value: filter.words,
      autocomplete: "off",
      spellcheck: "false",
    });
    this.search.addEventListener("input", () => onChange({ words: this.search.value }));
    this.selects = Object.fromEntries(
      FACETS.map((facet) => {
        const select = el("select", { "aria-label": LABELS[facet] });
        select.addEventListener("change", () => onChange({ [facet]: select.value }));
        return [facet, select];
      }),
    );
    const clear = () => onChange({ words: "", ...Object.fromEntries(FACETS.map((facet) => [facet, ""])) });
    this.clear = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-small", onclick: clear },
      "Clear the filter",
    );
    this.clearToo = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-main", onclick: clear },
      "Clear the filter",
    );
    this.shown = el("span", { class: "ddp-shown", role: "status" });
    this.element = el(
      "div",
      { class: "ddp-list-tools", role: "search" },
      this.search,
      FACETS.map((facet) => this.selects[facet]),
      this.clear,
      this.shown,
    );
  }

  update(filter, rows, numShown) {
    if (this.search.value !== filter.words) this.search.value = filter.words;
    this.offer(filter, rows);
    show(this.clear, isFiltering(filter));
    const all = count(rows.size);
    setText(
      this.shown,
      numShown === rows.size
        ? `${all} run${rows.size === 1 ? "" : "s"}`
        : `${count(numShown)} of ${all} runs`,
    );
  }

  /** Updates the options of each select, only if they changed, so that an open menu stays open. */
  offer(filter, rows) {
    if (this.offered === rows && this.filter === filter) return;
    [this.offered, this.filter] = [null, filter];
    const found = facetValues(rows);
    for (const facet of FACETS) {
      const select = this.selects[facet];
      const values = [...found[facet]].sort(([, a], [, b]) => a.label.localeCompare(b.label, "en"));
      const chosen = filter[facet];
      const options = [["", ALL[facet]], ...(facet === "state" ? [["live", "live"]] : [])];
      if (facet === "owner" && filter.me) options.push([MINE, "my runs"]);
      options.push(...values.map(([value, { label, count: num }]) => [value, `${label} (${count(num)})`]));
      if (chosen && !options.some(([value]) => value === chosen)) options.push([chosen, chosen]);
      const text = JSON.stringify(options);
      if (select.dataset.options !== text) {
        select.dataset.options = text;
        select.replaceChildren(...options.map(([value, words]) => el("option", { value }, words)));
      }
      if (select.value !== chosen) select.value = chosen;
      show(select, (facet !== "tag" && facet !== "owner") || values.length > 0 || chosen !== "");
    }
  }
}
