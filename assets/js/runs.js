// The list of runs, and the strip of those that are live now.

import { el, setText, show } from "./dom.js";
import { ago, count, dateTime, LIVE_STATES, loss, metric, metricLabel, ranks, UNKNOWN } from "./format.js";
import { StatePill } from "./header.js";
import { address, fetchJson } from "./net.js";

const REFRESH_EVERY_MS = 2000;
const COLUMNS = ["state", "run", "model", "data set", "ranks", "steps", "last loss", "best", "started"];

/** Fills an element with the list of runs; returns a function that ends it. */
export function mountRuns(root) {
  const rows = new Map();
  const body = el("tbody", {});
  const note = el("p", { class: "ddp-connection", role: "status", hidden: true });
  const empty = el(
    "div",
    { class: "ddp-nothing", hidden: true },
    el("p", {}, "No run yet. Pick a model and a data set, then press Start."),
    el("p", {}, el("a", { class: "ddp-button ddp-button-main", href: address("") }, "Start the first run")),
  );
  const head = el("tr", {}, COLUMNS.map((title) => el("th", { scope: "col" }, title)));
  const table = el("table", { class: "ddp-table ddp-runs-table", hidden: true }, el("thead", {}, head), body);
  root.replaceChildren(el("div", { class: "ddp ddp-runs-page" }, el("h1", {}, "Runs"), note, empty, table));

  const update = (found) => {
    show(empty, found.length === 0);
    show(table, found.length > 0);
    const names = new Set(found.map((run) => run.run_id));
    for (const [runId, row] of rows) {
      if (names.has(runId)) continue;
      row.element.remove();
      rows.delete(runId);
    }
    found.forEach((run, index) => {
      if (!rows.has(run.run_id)) rows.set(run.run_id, new Row(run.run_id));
      const row = rows.get(run.run_id);
      row.update(run);
      // Moved only when its place changed: a row that stays keeps its focus and selection.
      if (body.children[index] !== row.element) body.insertBefore(row.element, body.children[index] ?? null);
    });
  };
  return refreshing(update, note);
}

/** Fills an element with links to the runs that are going on; empty when there is none. */
export function mountLive(root) {
  const links = new Map();
  const list = el("ul", {});
  const strip = el("nav", { class: "ddp ddp-live-strip", "aria-label": "Running now", hidden: true }, el("strong", {}, "Running now"), list);
  root.replaceChildren(strip);
  const update = (found) => {
    const live = found.filter((run) => LIVE_STATES.has(run.state));
    show(strip, live.length > 0);
    const names = new Set(live.map((run) => run.run_id));
    for (const [runId, link] of links) {
      if (names.has(runId)) continue;
      link.element.remove();
      links.delete(runId);
    }
    for (const run of live) {
      if (!links.has(run.run_id)) {
        const link = new LiveLink(run.run_id);
        links.set(run.run_id, link);
        list.append(link.element);
      }
      links.get(run.run_id).update(run);
    }
  };
  return refreshing(update, null);
}

class LiveLink {
  constructor(runId) {
    this.pill = new StatePill();
    this.name = el("a", { href: runPage(runId) });
    this.where = el("span", {});
    this.element = el("li", {}, this.pill.element, this.name, this.where);
  }

  update(run) {
    this.pill.update(run.state);
    setText(this.name, run.name);
    setText(this.where, steps(run));
  }
}

class Row {
  constructor(runId) {
    this.pill = new StatePill();
    this.name = el("a", { href: runPage(runId) });
    this.id = el("small", {}, runId);
    this.cells = COLUMNS.map((title) => el("td", { "data-label": title }));
    this.cells[0].append(this.pill.element);
    this.cells[1].append(this.name, this.id);
    this.element = el("tr", {}, this.cells);
  }

  update(run) {
    const best = run.best_metric;
    this.pill.update(run.state);
    setText(this.name, run.name);
    show(this.id, run.name !== run.run_id);
    this.cells[0].title = run.error ?? "";
    const words = [
      run.model_label ?? run.model ?? UNKNOWN,
      run.dataset_label ?? run.dataset ?? UNKNOWN,
      ranks(run.nproc_per_node, run.device),
      steps(run),
      loss(run.loss),
      best ? `${metric(best.name, best.value)} ${best.name === "accuracy" ? "" : metricLabel(best.name)}`.trim() : UNKNOWN,
      ago(run.created_unix_s),
    ];
    words.forEach((text, index) => setText(this.cells[index + 2], text));
    this.cells.at(-1).title = dateTime(run.created_unix_s);
  }
}

function steps(run) {
  return run.num_steps ? `${count(run.step)} of ${count(run.num_steps)}` : count(run.step);
}

function runPage(runId) {
  return address(`run?id=${encodeURIComponent(runId)}`);
}

/** Asks for the list now and every two seconds while the page is visible; returns a function that ends it. */
function refreshing(update, note) {
  let isAsking = false;
  const refresh = async () => {
    if (isAsking || document.visibilityState !== "visible") return;
    isAsking = true;
    try {
      update(await fetchJson(address("live/runs")));
      if (note) show(note, false);
    } catch (error) {
      if (note) {
        setText(note, `${error.message} Trying again …`);
        show(note, true);
      }
    } finally {
      isAsking = false;
    }
  };
  const timer = setInterval(refresh, REFRESH_EVERY_MS);
  document.addEventListener("visibilitychange", refresh);
  refresh();
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", refresh);
  };
}
