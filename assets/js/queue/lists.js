// The lists of the queue page: waiting runs, live runs, the devices in use, and jobs of the engine.

import { actionButton } from "../shared/dialog.js";
import { el, section, setText, show, setAttribute, showText } from "../shared/dom.js";
import { about, ago, clock, count, dateTime, ordinal, ranks } from "../shared/format.js";
import { runPage } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { makeTable, paragraph, updateRows } from "../shared/widgets.js";

/**
 * A column of a table: `texts(item)` returns the text of a cell, a smaller one below it, and the cell's title. With
 * `address(item)` the text is a link, unless that is null. `label` is shown on phones instead of the title.
 * @typedef {object} Column
 * @property {any} title
 * @property {string} [label]
 * @property {string} [className]
 * @property {(item: any) => any[]} texts
 * @property {(item: any) => string | null} [address]
 */

const address = ({ run_id: runId }) => (runId === null ? null : runPage(runId));

/** @param {number | null} unixS */
const since = (unixS) => (unixS === null ? [""] : [ago(unixS), "", dateTime(unixS)]);

/** @type {Column} The name and the owner of a run, if the user may see them. */
const RUN = {
  title: "run",
  className: "ddp-queue-run",
  address,
  texts: ({ name, person, is_mine: isMine }) => [
    name ?? "somebody’s run",
    person && isMine ? `${person} (you)` : person,
  ],
};

/** A table that keeps the row of a run between updates, so that a focused button keeps the focus. */
class KeptTable {
  /**
   * @param {Column[]} columns
   * @param {object} options
   * @param {(item: any) => any} [options.keyOf]
   * @param {string} [options.mark] the attribute of a row with its key
   * @param {((item: any) => any) | null} [options.actions] makes the last cell of a row, with an `element` and
   * `update(item, numItems)`
   */
  constructor(columns, { keyOf = (item) => item.run_id, mark = "data-run", actions = null } = {}) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.mark = mark;
    this.actions = actions;
    this.actionsOf = new WeakMap();
    this.body = el("tbody", {});
    const titles = [...columns.map(({ title }) => title), ...(actions ? [null] : [])];
    const table = makeTable("ddp-table ddp-queue-table", titles, this.body);
    this.element = el("div", { class: "ddp-scroll", tabindex: 0 }, table);
  }

  update(items) {
    // Runs that the user may not see have no id: use their index as the key.
    const keyOf = (item) => this.keyOf(item) ?? `hidden ${items.indexOf(item)}`;
    const fill = (row, item) => this.fill(row, item, items.length);
    updateRows(this.body, items, keyOf, (item) => this.row(item), fill);
    show(this.element, items.length > 0);
  }

  row(item) {
    const cells = this.columns.map(({ title, label = title, className, address: addressOf }) => {
      const href = addressOf?.(item) ?? null;
      const main = el(href === null ? "span" : "a", { href });
      return el("td", { "data-label": label, class: className }, main, el("small", {}));
    });
    const actions = this.actions?.(item);
    const row = el("tr", { [this.mark]: this.keyOf(item) }, cells, actions);
    this.actionsOf.set(row, actions);
    return row;
  }

  fill(row, item, numItems) {
    this.columns.forEach(({ texts }, index) => {
      const [text, note, title] = texts(item);
      const cell = row.children[index];
      setText(cell.firstChild, text);
      setText(cell.lastChild, note);
      setAttribute(cell, "title", title);
    });
    this.actionsOf.get(row)?.update(item, numItems);
  }
}

/** @returns {Column[]} */
const waitingColumns = () => [
  { title: "place", className: "ddp-queue-place", texts: ({ place }) => [place] },
  { ...RUN, title: term("run"), label: "run" },
  { title: "needs", texts: (item) => [ranks(item.num_ranks, item.kind)] },
  { title: "asked", texts: (item) => since(item.asked_unix_s) },
  {
    title: "starts",
    className: "ddp-queue-why",
    texts: (item) => [about(item.starts_in_s) ?? "not known yet", item.why],
  },
];

export class WaitingList {
  /** `rule` explains the order of the queue; `afterAction()` fetches the queue again. */
  constructor(rule, afterAction) {
    this.mayManage = false;
    this.none = paragraph("empty", "No run is waiting.");
    const actions = (item) => new WaitingActions(item, this, afterAction);
    this.table = new KeptTable(waitingColumns(), { actions });
    const order = el("p", { class: "ddp-hint ddp-queue-rule" }, rule);
    this.element = section("Waiting", "waiting", this.table, this.none, order);
  }

  update({ waiting, may_manage: mayManage }) {
    this.mayManage = mayManage;
    this.table.update(waiting);
    show(this.none, waiting.length === 0);
  }
}

/** The buttons of a waiting run. */
class WaitingActions {
  constructor(item, list, afterAction) {
    this.list = list;
    const button = (text, label, call) => {
      const made = actionButton(text, "small", call, afterAction);
      setAttribute(made, "aria-label", `${label} ${item.name ?? "this run"}`);
      return made;
    };
    const id = item.run_id;
    const moveTo = (text, label, place) => button(text, label, () => ["move_in_queue", id, place()]);
    this.first = moveTo("First", "Put first:", () => 1);
    this.up = moveTo("Up", "Move up:", () => this.item.place - 1);
    this.down = moveTo("Down", "Move down:", () => this.item.place + 1);
    const share = () => ["use_occupied_gpus", id];
    this.share = button("Use occupied GPUs", "Let it use GPUs that other programs use:", share);
    this.out = button("Remove", "Remove from the queue:", () => ["stop_run", id, true]);
    const all = [this.first, this.up, this.down, this.share, this.out];
    this.element = el("td", {}, el("div", { class: "ddp-row-actions" }, all));
  }

  update(item, numWaiting) {
    this.item = item;
    const isTeacher = this.list.mayManage;
    const mayChange = item.run_id !== null && (isTeacher || item.is_mine);
    for (const move of [this.first, this.up, this.down]) show(move, isTeacher && numWaiting > 1);
    this.first.disabled = item.place === 1;
    this.up.disabled = item.place === 1;
    this.down.disabled = item.place === numWaiting;
    show(this.share, mayChange && item.can_share_gpus);
    show(this.out, mayChange);
  }
}

/** @type {Column[]} */
const RUNNING = [
  RUN,
  {
    title: "has",
    texts: ({ gpus, num_ranks: num, kind }) => [
      ranks(num, kind) + (gpus.length > 0 ? ` (${gpus.join(", ")})` : ""),
    ],
  },
  { title: "since", texts: (item) => since(item.began_unix_s) },
  { title: "ends", texts: (item) => [about(item.ends_in_s) ?? "not known yet"] },
];

export class RunningList {
  constructor() {
    this.none = paragraph("empty", "No run is live.");
    this.table = new KeptTable(RUNNING);
    this.element = section("Live runs", "going-on", this.table, this.none);
  }

  update(running) {
    this.table.update(running);
    show(this.none, running.length === 0);
  }
}

/** The devices of this machine: each GPU with its user, and the number of CPU ranks. */
export class DeviceList {
  constructor() {
    this.gpus = el("ul", { class: "ddp-queue-gpus" });
    this.cpuNumbers = el("span", {});
    this.cpu = el("p", {}, term("CPU rank", "CPU ranks"), ": ", this.cpuNumbers);
    this.note = el("p", {});
    this.element = section("Available to runs", "handed-out", this.gpus, this.cpu, this.note);
  }

  update({ gpus, cpu_ranks: cpuRanks, cpu_ranks_used: used, note }) {
    showText(this.note, note);
    const newRow = () => el("li", {}, el("b", {}), el("span", {}));
    updateRows(this.gpus, gpus, ({ index }) => index, newRow, fillGpu);
    const limit =
      cpuRanks === null ? " in use; the number is not limited." : ` of ${count(cpuRanks)} in use.`;
    setText(this.cpuNumbers, count(used) + limit);
  }
}

function fillGpu(row, { index, run, others }) {
  const free = others.length > 0 ? `other programs: ${others.join(", ")}` : "free";
  setText(row.firstChild, `GPU ${index}`);
  setText(row.lastChild, run === null ? free : (run.name ?? "somebody’s run"));
}

// The user's jobs in the queue of the engine (such as Slurm): place, state, reason, nodes.

/** @type {Column[]} */
const JOBS = [
  { title: "job", texts: ({ number }) => [number] },
  { ...RUN, texts: (item) => [item.name, item.run_id === null ? "not from this page" : ""] },
  {
    title: "state",
    texts: ({ state, place, num_waiting: all }) => [
      state,
      place === null ? "" : `${ordinal(place)} of ${count(all)} waiting`,
    ],
  },
  {
    title: "nodes",
    texts: ({ nodes, num_nodes: num, where }) => [
      nodes || `${count(num)} ${num === 1 ? "node" : "nodes"}`,
      where,
    ],
  },
  { title: "since", texts: (item) => since(item.is_waiting ? item.submitted_unix_s : item.starts_unix_s) },
  {
    title: "why, and when",
    className: "ddp-queue-why",
    texts: (item) => [item.is_waiting ? whenText(item.starts_unix_s) : "", item.why],
  },
];

function whenText(startsUnixS) {
  if (startsUnixS === null) return "start not known yet";
  return `starts ${about(Math.max(0, startsUnixS - Date.now() / 1000)) ?? dateTime(startsUnixS)}`;
}

/** Hidden if the engine has no queue. */
export class EngineJobs {
  constructor(engine) {
    this.silent = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.none = paragraph("empty", "You have no jobs there now.");
    this.table = new KeptTable(JOBS, { keyOf: (item) => item.number, mark: "data-job" });
    const title = engine === null ? "Jobs" : `Your jobs in ${engine.name}`;
    const text =
      "The cluster decides which job starts next. Jobs that were not started here are listed, too, but cannot be changed here.";
    const rule = el("p", { class: "ddp-hint ddp-queue-rule" }, text);
    this.element = section(title, "engine-jobs", this.silent, this.table, this.none, rule);
  }

  update(engine) {
    show(this.element, engine !== null);
    if (engine === null) return;
    const silentSince = engine.silent_since_unix_s;
    const text = `Not known since ${clock(silentSince)}: ${engine.name} does not answer. Runs continue.`;
    showText(this.silent, silentSince === null ? "" : text);
    this.table.update(engine.jobs);
    show(this.none, engine.jobs.length === 0 && silentSince === null);
  }
}
