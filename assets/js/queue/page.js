// The queue page: runs that wait for GPUs or CPU ranks, devices in use, and the tools for teachers.

import { el, icon, makeButton, setText, show } from "../shared/dom.js";
import { act } from "../shared/dialog.js";
import { address, fetchJson } from "../shared/net.js";
import { askEvery } from "../shared/polling.js";
import { EngineJobs, Handed, RunningList, WaitingList } from "./lists.js";
import { ConfirmStop, LimitsPanel } from "./limits.js";

const REFRESH_EVERY_MS = 2000;

/** Fills an element with the queue page; returns a function that stops its updates. */
export function mountQueue(root) {
  document.title = "Queue · Rankscope";
  const note = el("p", { class: "ddp-connection", role: "status", hidden: true });
  const waiting = el("p", { class: "ddp-loading", role: "status" }, "Reading the queue …");
  const page = el("div", { class: "ddp ddp-queue-page" }, el("h1", {}, "Queue"), note, waiting);
  root.replaceChildren(page);
  let view = null;
  const ask = async () => {
    const queue = await fetchJson(address("live/queue"));
    if (view === null) {
      view = new QueueView(queue, ask);
      waiting.remove();
      page.append(...view.elements);
    }
    view.update(queue);
  };
  return askEvery(REFRESH_EVERY_MS, ask, (error) => {
    if (error) setText(note, `${error.message} Trying again …`);
    show(note, error !== null);
  });
}

class QueueView {
  /** `afterAction()` fetches the queue again after a click changed it. */
  constructor(queue, afterAction) {
    this.paused = el(
      "p",
      { class: "ddp-queue-paused", role: "status", hidden: true },
      icon("pause"),
      el("span", {}, "The queue is paused: live runs continue, no run starts."),
    );
    this.trouble = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.pause = makeButton({ class: "ddp-button" });
    this.pause.addEventListener("click", async () => {
      await act(this.pause, this.isPaused ? "resume_queue" : "pause_queue");
      await afterAction();
    });
    this.stopAll = new ConfirmStop(afterAction);
    this.tools = el(
      "div",
      { class: "ddp-buttons", role: "group", "aria-label": "For teachers", hidden: !queue.may_manage },
      this.pause,
      this.stopAll.element,
    );
    this.handed = new Handed();
    this.waiting = new WaitingList(queue.rule, afterAction);
    this.running = new RunningList();
    this.limits = new LimitsPanel(afterAction);
    this.jobs = new EngineJobs(queue.engine);
    this.devices = el("div", { class: "ddp-pair" }, this.handed.element, this.limits.element);
    this.elements = [
      this.trouble,
      this.tools,
      this.paused,
      this.jobs.element,
      this.waiting.element,
      this.running.element,
      this.devices,
    ];
  }

  update(queue) {
    this.isPaused = queue.is_paused;
    show(this.trouble, queue.trouble !== null);
    setText(this.trouble, queue.trouble === null ? "" : `No run starts from the queue now: ${queue.trouble}`);
    show(this.paused, queue.is_paused);
    setText(this.pause, queue.is_paused ? "Resume the queue" : "Pause the queue");
    this.stopAll.update(queue.running.length);
    this.waiting.update(queue);
    this.running.update(queue.running);
    this.handed.update(queue.devices);
    this.limits.update(queue);
    this.jobs.update(queue.engine);
    // If the engine has its own queue, our device counts are meaningless.
    const isOwn = queue.engine === null;
    show(this.waiting.element, isOwn || queue.waiting.length > 0);
    show(this.running.element, isOwn);
    show(this.devices, isOwn);
  }
}
