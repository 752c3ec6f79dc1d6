// The lists of the queue page: waiting runs, live runs, the devices in use, and jobs of the engine.

import { actionButton } from "../shared/dialog.js";
import { el, section, setText, show, setAttribute } from "../shared/dom.js";
import { about, ago, clock, count, dateTime, ordinal, ranks } from "../shared/format.js";
import { runPage } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { updateRows, makeTable } from "../shared/widgets.js";

/** A table that keeps the row of a run between updates, so that a focused button keeps the focus. */
class KeptTable {
  constructor(titles, makeRow, keyOf = (item) => item.run_id) {
    this.makeRow = makeRow;
    this.keyOf = keyOf;
    this.rows = new WeakMap();
    this.body = el("tbody", {});
    const table = makeTable("ddp-table ddp-queue-table", titles, this.body);
    this.element = el("div", { class: "ddp-scroll", tabindex: 0 }, table);
  }

  update(items) {
    const make = (item) => {
      const row = this.makeRow(item);
      this.rows.set(row.element, row);
      return row.element;
    };
    // Runs that the user may not see have no id: use their index as the key.
    const keyOf = (item) => this.keyOf(item) ?? `hidden ${items.indexOf(item)}`;
    updateRows(this.body, items, keyOf, make, (element, item) => {
      this.rows.get(element).update(item, items.length);
    });
    show(this.element, items.length > 0);
  }
}

export class WaitingList {
  /** `rule` explains the order of the queue; `afterAction()` fetches the queue again. */
  constructor(rule, afterAction) {
    this.mayManage = false;
    this.none = el("p", { class: "ddp-empty" }, "No run is waiting.");
    this.table = new KeptTable(
      ["place", term("run"), "needs", "asked", "starts", null],
      (item) => new WaitingRow(item, this, afterAction),
    );
    this.element = section(
      "Waiting",
      "waiting",
      this.table,
      this.none,
      el("p", { class: "ddp-hint ddp-queue-rule" }, rule),
    );
  }

  update({ waiting, may_manage: mayManage }) {
    this.mayManage = mayManage;
    this.table.update(waiting);
    show(this.none, waiting.length === 0);
  }
}

class WaitingRow {
  constructor(item, list, afterAction) {
    this.list = list;
    this.place = el("td", { "data-label": "place", class: "ddp-queue-place" });
    this.who = new RunName(item);
    this.needs = el("td", { "data-label": "needs" });
    this.asked = el("td", { "data-label": "asked" });
    this.starts = el("span", {});
    this.why = el("small", {});
    const button = (words, label, call) => {
      const made = actionButton(words, "ddp-button-small", call, afterAction);
      setAttribute(made, "aria-label", `${label} ${item.name ?? "this run"}`);
      return made;
    };
    const moveTo = (words, label, place) =>
      button(words, label, () => ["move_in_queue", item.run_id, place()]);
    this.first = moveTo("First", "Put first:", () => 1);
    this.up = moveTo("Up", "Move up:", () => this.item.place - 1);
    this.down = moveTo("Down", "Move down:", () => this.item.place + 1);
    this.share = button("Use occupied GPUs", "Let it use GPUs that other programs use:", () => [
      "use_occupied_gpus",
      item.run_id,
    ]);
    this.out = button("Remove", "Remove from the queue:", () => ["stop_run", item.run_id, true]);
    const actions = el(
      "td",
      {},
      el("div", { class: "ddp-row-actions" }, this.first, this.up, this.down, this.share, this.out),
    );
    const starts = el("td", { "data-label": "starts", class: "ddp-queue-why" }, this.starts, this.why);
    this.element = el(
      "tr",
      { "data-run": item.run_id },
      this.place,
      this.who,
      this.needs,
      this.asked,
      starts,
      actions,
    );
  }

  update(item, numWaiting) {
    this.item = item;
    setText(this.place, item.place);
    this.who.update(item);
    setText(this.needs, ranks(item.num_ranks, item.kind));
    setText(this.asked, ago(item.asked_unix_s));
    this.asked.title = dateTime(item.asked_unix_s);
    setText(this.starts, about(item.starts_in_s) ?? "not known yet");
    setText(this.why, item.why);
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

export class RunningList {
  constructor() {
    this.none = el("p", { class: "ddp-empty" }, "No run is live.");
    this.table = new KeptTable(["run", "has", "since", "ends"], (item) => new RunningRow(item));
    this.element = section("Live runs", "going-on", this.table, this.none);
  }

  update(running) {
    this.table.update(running);
    show(this.none, running.length === 0);
  }
}

class RunningRow {
  constructor(item) {
    this.who = new RunName(item);
    this.has = el("td", { "data-label": "has" });
    this.since = el("td", { "data-label": "since" });
    this.ends = el("td", { "data-label": "ends" });
    this.element = el("tr", { "data-run": item.run_id }, this.who, this.has, this.since, this.ends);
  }

  update(item) {
    this.who.update(item);
    const which = item.gpus.length > 0 ? ` (${item.gpus.join(", ")})` : "";
    setText(this.has, ranks(item.num_ranks, item.kind) + which);
    setText(this.since, ago(item.began_unix_s));
    this.since.title = dateTime(item.began_unix_s);
    setText(this.ends, about(item.ends_in_s) ?? "not known yet");
  }
}

/** The cell with the name and the owner of a run, if the user may see them. */
class RunName {
  constructor(item) {
    this.link = item.run_id === null ? el("span", {}) : el("a", { href: runPage(item.run_id) });
    this.whose = el("small", {});
    this.element = el("td", { "data-label": "run", class: "ddp-queue-run" }, this.link, this.whose);
  }

  update(item) {
    setText(this.link, item.name ?? "somebody’s run");
    const words = item.is_mine ? `${item.person} (you)` : item.person;
    setText(this.whose, item.person ? words : "");
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
    setText(this.note, note ?? "");
    show(this.note, Boolean(note));
    const words = gpus.map(gpuWords);
    if (JSON.stringify(words) !== this.shown) {
      this.shown = JSON.stringify(words);
      this.gpus.replaceChildren(
        ...words.map(([name, what]) => el("li", {}, el("b", {}, name), el("span", {}, what))),
      );
    }
    show(this.gpus, gpus.length > 0);
    const limit =
      cpuRanks === null
        ? `${count(used)} in use; the number is not limited.`
        : `${count(used)} of ${count(cpuRanks)} in use.`;
    setText(this.cpuNumbers, limit);
  }
}

function gpuWords({ index, run, others }) {
  const name = `GPU ${index}`;
  if (run !== null) return [name, run.name ?? "somebody’s run"];
  return [name, others.length > 0 ? `other programs: ${others.join(", ")}` : "free"];
}

// The user's jobs in the queue of the engine (such as Slurm): place, state, reason, nodes.

/** Hidden if the engine has no queue. */
export class EngineJobs {
  constructor(engine) {
    this.silent = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.none = el("p", { class: "ddp-empty" }, "You have no jobs there now.");
    this.table = new KeptTable(
      ["job", "run", "state", "nodes", "since", "why, and when"],
      (item) => new JobRow(item),
      (item) => item.number,
    );
    const title = engine === null ? "Jobs" : `Your jobs in ${engine.name}`;
    const words =
      "The cluster decides which job starts next. Jobs that were not started here are listed, too, but cannot be changed here.";
    this.element = section(
      title,
      "engine-jobs",
      this.silent,
      this.table,
      this.none,
      el("p", { class: "ddp-hint ddp-queue-rule" }, words),
    );
  }

  update(engine) {
    show(this.element, engine !== null);
    if (engine === null) return;
    const since = engine.silent_since_unix_s;
    show(this.silent, since !== null);
    setText(
      this.silent,
      since === null ? "" : `Not known since ${clock(since)}: ${engine.name} does not answer. Runs continue.`,
    );
    this.table.update(engine.jobs);
    show(this.none, engine.jobs.length === 0 && since === null);
  }
}

class JobRow {
  constructor(item) {
    this.number = el("td", { "data-label": "job" }, item.number);
    this.link = item.run_id === null ? el("span", {}) : el("a", { href: runPage(item.run_id) });
    this.whose = el("small", {}, item.run_id === null ? "not from this page" : "");
    this.state = el("span", {});
    this.place = el("small", {});
    this.nodes = el("span", {});
    this.where = el("small", {});
    this.since = el("td", { "data-label": "since" });
    this.starts = el("span", {});
    this.why = el("small", {});
    this.element = el(
      "tr",
      { "data-job": item.number },
      this.number,
      el("td", { "data-label": "run", class: "ddp-queue-run" }, this.link, this.whose),
      el("td", { "data-label": "state" }, this.state, this.place),
      el("td", { "data-label": "nodes" }, this.nodes, this.where),
      this.since,
      el("td", { "data-label": "why, and when", class: "ddp-queue-why" }, this.starts, this.why),
    );
  }

  update(item) {
    setText(this.link, item.name);
    setText(this.state, item.state);
    setText(
      this.place,
      item.place === null ? "" : `${ordinal(item.place)} of ${count(item.num_waiting)} waiting`,
    );
    const plural = item.num_nodes === 1 ? "node" : "nodes";
    setText(this.nodes, item.nodes || `${count(item.num_nodes)} ${plural}`);
    setText(this.where, item.where);
    const since = item.is_waiting ? item.submitted_unix_s : item.starts_unix_s;
    setText(this.since, since === null ? "" : ago(since));
    this.since.title = since === null ? "" : dateTime(since);
    setText(this.starts, item.is_waiting ? whenInWords(item.starts_unix_s) : "");
    setText(this.why, item.why);
  }
}

function whenInWords(startsUnixS) {
  if (startsUnixS === null) return "start not known yet";
  return `starts ${about(Math.max(0, startsUnixS - Date.now() / 1000)) ?? dateTime(startsUnixS)}`;
}
