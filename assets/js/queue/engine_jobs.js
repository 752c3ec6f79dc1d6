// The user's jobs in the queue of the engine (such as Slurm): place, state, reason, nodes.

import { el, section, setText, show } from "../shared/dom.js";
import { about, ago, clock, count, dateTime, ordinal } from "../shared/format.js";
import { runPage } from "../shared/net.js";
import { KeptTable } from "./lists.js";

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
      this.table.element,
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
