// The page of all runs: the list, the comparison, the bin.

import { mayChange, person } from "../auth/person.js";
import { toggleMenu } from "../shared/dialog.js";
import { el, enable, setAttribute, setText, show } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { address, comparePage, rerunAddress } from "../shared/net.js";
import {
  BinView,
  CHANGED,
  MAX_COMPARED,
  MAX_EXPORTED,
  deleteRuns,
  editRun,
  exportLinks,
  rowMenu,
  ImportButton,
} from "./actions.js";
import { CompareView } from "./compare.js";
import { RunsFeed } from "./feed.js";
import {
  FACETS,
  CURRENT_USER,
  addressOfFilter,
  facetValues,
  filterFromAddress,
  isFiltering,
} from "./filter.js";
import { RunsTable } from "./table.js";
import { ConnectionNote, buttonLink, offerOptions, textButton } from "../shared/widgets.js";

// The bar for selected runs with the actions that apply to all of them.

class SelectionBar {
  /**
   * `isAllowed(runId)` is true if the user may change a run; `onCompare(href)`, `onEdit(runId)`,
   * `onDelete(runIds)`, `onClear()` are called on clicks.
   */
  constructor({ isAllowed, onCompare, onEdit, onDelete, onClear }) {
    this.isAllowed = isAllowed;
    /** @type {string[]} */
    this.runIds = [];
    this.count = el("strong", { role: "status" });
    const onclick = (event) => {
      event.preventDefault();
      if (this.compare.href) onCompare(this.compare.href);
    };
    this.compare = buttonLink("Compare", { onclick }, "main small");
    this.again = buttonLink("Run again with changes", {}, "small");
    this.edit = textButton("Rename, tag, note", () => onEdit(this.runIds[0]), "small");
    const openMenu = () => toggleMenu(this.export, exportLinks(this.runIds));
    this.export = textButton("Export", openMenu, "small", { "aria-haspopup": "true" });
    this.remove = textButton("Delete", () => onDelete(this.runIds), "small");
    const clear = textButton("Clear", onClear, "small");
    this.hint = el("span", { class: "ddp-hint" });
    this.element = el(
      "div",
      { class: "ddp-selection", role: "region", "aria-label": "Selected runs", hidden: true },
      this.count, this.compare, this.edit, this.again, this.export, this.remove, clear, this.hint,
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
    const areMine = this.runIds.every((runId) => this.isAllowed(runId));
    show(this.edit, num === 1 && areMine);
    enable(this.remove, areMine, null, "Only their owners or a teacher can delete these runs.");
    if (num === 1) this.again.href = rerunAddress(this.runIds[0]);
    enable(this.export, num <= MAX_EXPORTED, null, `At most ${MAX_EXPORTED} runs at once.`);
  }
}

// The tools above the list: search, filters, and the number of runs shown.

/** The label of each select, and its first option. */
const LABELS = {
  state: ["State", "All states"],
  owner: ["Owner", "All people"],
  model: ["Model", "All models"],
  dataset: ["Data set", "All data sets"],
  tag: ["Tag", "All tags"],
};

class ListTools {
  /** `onChange(values)` receives the changed parts of the filter. */
  constructor(filter, onChange) {
    this.offered = null;
    this.filter = null;
    this.search = el("input", {
      type: "search",
      class: "ddp-search",
      placeholder: "Search names, tags, notes …",
      "aria-label": "Search the runs",
      value: filter.text,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => onChange({ text: this.search.value }),
    });
    const selectOf = (facet) =>
      el("select", {
        "aria-label": LABELS[facet][0],
        onchange: ({ target }) => onChange({ [facet]: target.value }),
      });
    this.selects = Object.fromEntries(FACETS.map((facet) => [facet, selectOf(facet)]));
    const clear = () => onChange({ text: "", ...Object.fromEntries(FACETS.map((facet) => [facet, ""])) });
    this.clear = textButton("Clear the filter", clear, "small");
    this.clearToo = textButton("Clear the filter", clear, "main");
    this.shown = el("span", { class: "ddp-shown", role: "status" });
    const tools = [this.search, Object.values(this.selects), this.clear, this.shown];
    this.element = el("div", { class: "ddp-list-tools", role: "search" }, tools);
  }

  update(filter, rows, numShown) {
    if (this.search.value !== filter.text) this.search.value = filter.text;
    this.offer(filter, rows);
    show(this.clear, isFiltering(filter));
    const all = rows.size === 1 ? "1 run" : `${count(rows.size)} runs`;
    setText(this.shown, numShown === rows.size ? all : `${count(numShown)} of ${count(rows.size)} runs`);
  }

  /** Updates the options of each select, only if they changed, so that an open menu stays open. */
  offer(filter, rows) {
    if (this.offered === rows && this.filter === filter) return;
    [this.offered, this.filter] = [null, filter];
    const facets = facetValues(rows);
    for (const facet of FACETS) {
      const select = this.selects[facet];
      const values = [...facets[facet]].sort(([, a], [, b]) => a.label.localeCompare(b.label, "en"));
      const chosen = filter[facet];
      const options = [["", LABELS[facet][1]], ...(facet === "state" ? [["live", "live"]] : [])];
      if (facet === "owner" && filter.me) options.push([CURRENT_USER, "my runs"]);
      options.push(...values.map(([value, { label, count: num }]) => [value, `${label} (${count(num)})`]));
      if (chosen && !options.some(([value]) => value === chosen)) options.push([chosen, chosen]);
      const text = JSON.stringify(options);
      if (select.dataset.options !== text) {
        select.dataset.options = text;
        offerOptions(select, options);
      }
      if (select.value !== chosen) select.value = chosen;
      show(select, (facet !== "tag" && facet !== "owner") || values.length > 0 || chosen !== "");
    }
  }
}

/** Shows the view that the URL names; returns a function that unmounts it. */
export function mountRuns(root) {
  let view = null;
  const open = () => {
    view?.close();
    const query = new URLSearchParams(window.location.search);
    const compared = (query.get("compare") ?? "").split(",").filter(Boolean);
    const go = (event) => {
      // With a modifier key the browser opens the link in a new tab or window.
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      goTo(event.currentTarget.href);
    };
    if (compared.length > 0) view = new CompareView(compared, go);
    else if (query.has("bin")) view = new BinView(go);
    else view = new ListView(go, goTo);
    root.replaceChildren(view.element);
  };
  const goTo = (href) => {
    window.history.pushState(null, "", href);
    open();
    window.scrollTo(0, 0);
  };
  window.addEventListener("popstate", open);
  open();
  return () => {
    window.removeEventListener("popstate", open);
    view.close();
  };
}

class ListView {
  /** `onLink(event)` follows a link and `goTo(href)` a URL without reloading the page. */
  constructor(onLink, goTo) {
    document.title = "Runs · Rankscope";
    this.filter = filterFromAddress(window.location.search);
    this.note = new ConnectionNote();
    this.reading = el("p", { class: "ddp-caption", role: "status", hidden: true });
    this.tools = new ListTools(this.filter, (values) => this.choose(values));
    this.table = new RunsTable({
      // After Back from a comparison the same runs are selected.
      selected: window.history.state?.selected ?? [],
      onSort: (column) => this.sortBy(column),
      onSelection: (selected) => this.bar.update(selected),
      onMenu: (row, button) => this.openMenu(row, button),
    });
    window.history.replaceState(null, "");
    this.bar = new SelectionBar({
      isAllowed: (runId) => this.mayChange(this.feed.rows.get(runId)),
      onCompare: (href) => {
        window.history.replaceState({ selected: this.bar.runIds }, "");
        goTo(href);
      },
      onEdit: (runId) => this.edit(this.feed.rows.get(runId)),
      onDelete: (runIds) => this.remove(runIds),
      onClear: () => this.table.clearSelection(),
    });
    const nothing = (text, button) =>
      el("div", { class: "ddp-nothing", hidden: true }, el("p", {}, text), button);
    const start = el("p", {}, buttonLink("Start the first run", { href: address("") }, "main"));
    this.none = nothing("No run yet. Pick a model and a data set, then press Start.", start);
    this.noMatch = nothing("No run fits this filter.", this.tools.clearToo);
    this.waiting = el("p", { class: "ddp-loading", role: "status" }, "Reading the list …");
    this.import = new ImportButton(() => this.feed.ask());
    this.element = el(
      "div",
      { class: "ddp ddp-runs-page" },
      el("div", { class: "ddp-list-title" }, el("h1", {}, "Runs"), el("a", { href: address("runs?bin=1"), onclick: onLink }, "Bin"), this.import),
      this.note, this.tools, this.reading, this.waiting, this.none, this.noMatch, this.table, this.bar,
    ); // prettier-ignore
    this.import.acceptDrops(this.element);
    this.tools.element.append(this.table.columns.button);
    show(this.tools.element, false);
    show(this.table.element, false);
    this.feed = new RunsFeed({
      onRows: (rows, news) => this.take(rows, news),
      onConnection: (error) => this.note.heard(error),
    });
    person().then((who) => this.meet(who));
    this.onChanged = () => this.feed.ask();
    window.addEventListener(CHANGED, this.onChanged);
  }

  /** Called when the current user is known. */
  meet(who) {
    this.who = who;
    this.filter = { ...this.filter, me: who.has_login ? who.name : "" };
    this.table.showOwners(who.has_login);
    this.table.arrange(this.filter);
    this.refresh();
  }

  mayChange(row) {
    return this.who !== undefined && row !== undefined && mayChange(this.who, row.owner);
  }

  take(rows, { isWhole, numUnread }) {
    show(this.waiting, false);
    show(this.reading, numUnread > 0);
    const read = `${count(rows.size)} of ${count(rows.size + numUnread)}`;
    setText(this.reading, `Reading runs for the first time: ${read} …`);
    this.table.take(rows, this.filter, isWhole);
    this.refresh();
  }

  refresh() {
    const { rows } = this.feed;
    const numShown = this.table.order.length;
    this.tools.update(this.filter, rows, numShown);
    show(this.tools.element, rows.size > 0);
    // "No run yet" may appear only after the list has arrived.
    show(this.none, this.waiting.hidden && rows.size === 0 && !this.feed.numUnread);
    show(this.noMatch, rows.size > 0 && numShown === 0);
    this.table.show(numShown > 0);
  }

  choose(values) {
    this.filter = { ...this.filter, ...values };
    window.history.replaceState(null, "", addressOfFilter(this.filter));
    this.table.arrange(this.filter);
    this.refresh();
  }

  sortBy({ key, first }) {
    const isSame = this.filter.sort.replace("-", "") === key;
    const opposite = this.filter.sort.startsWith("-") ? key : `-${key}`;
    this.choose({ sort: isSame ? opposite : first + key });
  }

  openMenu(row, button) {
    const acts = { onEdit: () => this.edit(row), onDelete: () => this.remove([row.run_id]) };
    toggleMenu(button, rowMenu(row, { ...acts, isAllowed: this.mayChange(row) }));
  }

  async edit(row) {
    if (await editRun(row)) this.feed.ask();
  }

  remove(runIds) {
    deleteRuns(runIds.map((runId) => this.feed.rows.get(runId)));
  }

  close() {
    window.removeEventListener(CHANGED, this.onChanged);
    this.feed.close();
    this.table.close();
  }
}
