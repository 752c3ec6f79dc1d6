// The page of all runs: the list, the comparison, the bin.

import { CompareView } from "./compare/compare.js";
import { toggleMenu } from "../shared/dialog.js";
import { el, setText, show } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { address } from "../shared/net.js";
import { mayChange, person } from "../auth/person.js";
import { CHANGED, deleteRuns, editRun, rowMenu } from "./actions.js";
import { BinView } from "./bin.js";
import { RunsFeed } from "./feed.js";
import { addressOfFilter, filterFromAddress } from "./filter.js";
import { SelectionBar } from "./selection.js";
import { RunsTable } from "./table.js";
import { ListTools } from "./tools.js";

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
    this.note = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.reading = el("p", { class: "ddp-caption", role: "status", hidden: true });
    this.tools = new ListTools(this.filter, (values) => this.choose(values));
    this.table = new RunsTable({
      onSort: (column) => this.sortBy(column),
      onSelection: (selected) => this.bar.update(selected),
      onMenu: (row, button) => this.openMenu(row, button),
    });
    this.bar = new SelectionBar({
      mayChange: (runId) => this.mayChange(this.feed.rows.get(runId)),
      onCompare: goTo,
      onEdit: (runId) => this.edit(this.feed.rows.get(runId)),
      onDelete: (runIds) => this.remove(runIds),
      onClear: () => this.table.clearSelection(),
    });
    this.none = el("div", { class: "ddp-nothing", hidden: true }, el("p", {}, "No run yet. Pick a model and a data set, then press Start."),
      el("p", {}, el("a", { class: "ddp-button ddp-button-main", href: address("") }, "Start the first run"))); // prettier-ignore
    this.noMatch = el(
      "div",
      { class: "ddp-nothing", hidden: true },
      el("p", {}, "No run fits this filter."),
      this.tools.clearToo,
    );
    this.waiting = el("p", { class: "ddp-loading", role: "status" }, "Reading the list …");
    this.element = el(
      "div",
      { class: "ddp ddp-runs-page" },
      el("div", { class: "ddp-list-title" }, el("h1", {}, "Runs"), el("a", { href: address("runs?bin=1"), onclick: onLink }, "Bin")),
      this.note, this.tools.element, this.reading, this.waiting, this.none, this.noMatch, this.table.element, this.bar.element,
    ); // prettier-ignore
    this.tools.element.append(this.table.columns.button);
    show(this.tools.element, false);
    show(this.table.element, false);
    this.feed = new RunsFeed({
      onRows: (rows, news) => this.take(rows, news),
      onConnection: (error) => {
        show(this.note, error !== null);
        setText(this.note, error ? `${error.message} Trying again …` : "");
      },
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
    setText(
      this.reading,
      numUnread > 0
        ? `Reading runs for the first time: ${count(rows.size)} of ${count(rows.size + numUnread)} …`
        : "",
    );
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
    toggleMenu(
      button,
      rowMenu(row, {
        onEdit: () => this.edit(row),
        onDelete: () => this.remove([row.run_id]),
        mayChange: this.mayChange(row),
      }),
    );
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
