// The machine page: devices and their users, disk forecast, missing items, versions, communication speed.

import { CommandLine, ConnectionNote, paragraph, updateRows } from "../shared/widgets.js";
import { el, section, setText } from "../shared/dom.js";
import { address, fetchJson, askEvery } from "../shared/net.js";
import { CommunicationCheck } from "./check.js";
import { Gpus, hostsSection } from "./devices.js";
import { installLine } from "./install.js";
import { Answering, Disk, Memory, Processor, listed } from "./parts.js";
import { SelfCheck } from "./self_check.js";

// Missing packages and features with the commands that install them, and the installed versions.

/** The section of missing items; problems come first. */
function missingSection() {
  const lead = paragraph("caption");
  const list = el("ul", { class: "ddp-missing-list" });
  const element = section("What is missing, and how to get it", "missing", lead, list);
  return {
    element,
    update({ missing }) {
      setText(lead, leadText(missing));
      updateRows(list, missing ?? [], keyOf, newItem);
    },
  };
}

function leadText(missing) {
  if (missing === null) return "Looking …";
  if (missing.length === 0) return "Nothing is missing: every feature works here.";
  return missing.some((item) => item.is_problem)
    ? "Problems come first; the other items are optional."
    : "Training works. Each of these items is optional.";
}

// The key contains all texts that can change, so that a changed item gets a new row.
function keyOf(item) {
  return `${item.what}\n${item.meaning}\n${item.command}`;
}

function newItem(item) {
  const { what, meaning, command, data_set: dataSet } = item;
  const install = dataSet === null ? null : installLine(dataSet);
  const line = command === null ? null : new CommandLine(command, what);
  const problem = item.is_problem ? " problem" : null;
  return listed(what, problem, el("p", {}, meaning), install, line);
}

/** The section of versions, for bug reports. */
function versionsSection() {
  const list = el("dl", { class: "ddp-versions-list" });
  const element = section("Versions", "versions", list);
  const newRow = ({ name, version }) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, version ?? "none here"));
  const update = ({ versions }) => updateRows(list, versions, JSON.stringify, newRow);
  return { element, update };
}

const REFRESH_EVERY_MS = 2000;

/** Fills an element with the machine page; returns a function that stops its updates. */
export function mountMachine(root) {
  const note = new ConnectionNote();
  const waiting = el("p", { class: "ddp-loading" }, "Reading the state of this machine …");
  const page = el("div", { class: "ddp ddp-machine-page" }, el("h1", {}, "Machine"), note, waiting);
  root.replaceChildren(page);
  let view = null;
  const ask = async () => {
    const report = await fetchJson(address("live/machine"));
    if (view === null) {
      view = new MachineView(report);
      waiting.remove();
      page.append(...view.elements);
    }
    view.update(report);
  };
  const end = askEvery(REFRESH_EVERY_MS, ask, (error) => note.heard(error));
  return () => {
    end();
    view?.close();
  };
}

class MachineView {
  constructor(report) {
    this.hosts = hostsSection();
    this.gpus = new Gpus();
    this.check = new CommunicationCheck(report.communication);
    this.selfCheck = new SelfCheck(report.machine_check);
    this.parts = [new Processor(), new Memory(), new Disk()];
    this.answering = new Answering();
    this.missing = missingSection();
    this.versions = versionsSection();
    this.elements = [
      this.hosts.element,
      this.gpus.element,
      el("div", { class: "ddp-three" }, this.parts),
      this.selfCheck.element,
      this.check.element,
      this.answering.element,
      el("div", { class: "ddp-missing-pair" }, this.missing, this.versions),
    ];
  }

  update(report) {
    const own = [this.selfCheck, this.check, this.answering, this.missing, this.versions];
    for (const part of [this.hosts, this.gpus, ...this.parts, ...own]) {
      part.update(report);
    }
  }

  close() {
    this.selfCheck.leave();
    this.check.leave();
  }
}
