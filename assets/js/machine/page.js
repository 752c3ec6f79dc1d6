// The machine page: devices and their users, disk forecast, missing items, communication speed.

import { el, setText, show } from "../shared/dom.js";
import { CommunicationCheck } from "./check.js";
import { hostsSection } from "./hosts.js";
import { Gpus } from "./gpus.js";
import { missingSection, versionsSection } from "./missing.js";
import { Answering, Disk, Memory, Processor } from "./parts.js";
import { SelfCheck } from "./self_check.js";
import { address, fetchJson } from "../shared/net.js";
import { askEvery } from "../shared/polling.js";

const REFRESH_EVERY_MS = 2000;

/** Fills an element with the machine page; returns a function that stops its updates. */
export function mountMachine(root) {
  const note = el("p", { class: "ddp-connection", role: "status", hidden: true });
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
  const end = askEvery(REFRESH_EVERY_MS, ask, (error) => {
    if (error) setText(note, `${error.message} Trying again …`);
    show(note, error !== null);
  });
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
      el(
        "div",
        { class: "ddp-three" },
        this.parts.map((part) => part.element),
      ),
      this.selfCheck.element,
      this.check.element,
      this.answering.element,
      el("div", { class: "ddp-missing-pair" }, this.missing.element, this.versions.element),
    ];
  }

  update(report) {
    const own = [this.selfCheck, this.check, this.answering, this.missing, this.versions];
    for (const part of [this.hosts, this.gpus, ...this.parts, ...own]) {
      part.update(report);
    }
  }

  close() {
    this.selfCheck.close();
    this.check.close();
  }
}
