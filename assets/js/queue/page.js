// The queue page: runs that wait for GPUs or CPU ranks, devices in use, limits, and the tools for teachers.

import { el, enable, section, setText, show, icon, showText } from "../shared/dom.js";
import { openDialog, showMessage, actionButton } from "../shared/dialog.js";
import { bytes, count, number } from "../shared/format.js";
import { callEndpoint, address, fetchJson, askEvery } from "../shared/net.js";
import { EngineJobs, DeviceList, RunningList, WaitingList } from "./lists.js";
import { ConnectionNote, field, paragraph, textButton, updateRows } from "../shared/widgets.js";

const GB = 1e9;
const FIELDS = [
  {
    name: "num_ranks",
    label: "GPUs and CPU ranks at once",
    unit: 1,
    format: (value) =>
      value === 1 ? "1 GPU or CPU rank at once" : `${count(value)} GPUs or CPU ranks at once`,
  },
  {
    name: "minutes_per_run",
    label: "Minutes per run; then it saves and stops",
    unit: 1,
    format: (value) => `${number(value)} ${value === 1 ? "minute" : "minutes"} per run`,
  },
  {
    name: "disk_bytes",
    label: "Disk for all runs, in GB",
    unit: GB,
    format: (value) => `${bytes(value)} of disk`,
  },
  {
    name: "num_waiting",
    label: "Runs in the queue",
    unit: 1,
    format: (value) => `${count(value)} ${value === 1 ? "run" : "runs"} in the queue`,
  },
];

const EMPTY_FIELD =
  "An empty field means no limit. With a name, the limits apply to that person instead of those for everybody.";

class LimitsPanel {
  constructor(afterAction) {
    this.afterAction = afterAction;
    this.mine = el("p", {});
    this.everybody = el("p", {});
    this.people = el("ul", { class: "ddp-queue-limits" });
    this.change = textButton("Change the limits …", () => this.ask(), "small");
    this.element = section("Limits", "limits", this.mine, this.everybody, this.people, this.change);
  }

  update({ limits, may_manage: mayManage }) {
    this.limits = limits;
    show(this.mine, !mayManage);
    for (const element of [this.everybody, this.people, this.change]) show(element, mayManage);
    setText(this.mine, mineText(limits));
    if (!mayManage) return;
    setText(this.everybody, `Each person: ${toText(limits.everybody)}.`);
    const lines = Object.entries(limits.people).map(([name, values]) => `${name}: ${toText(values)}.`);
    updateRows(this.people, lines, String, (line) => el("li", {}, line));
  }

  async ask() {
    const onchange = () => {
      const { people, everybody } = this.limits;
      const name = person.value.trim();
      show(ownLabel, name in people);
      checkbox.checked = false;
      const values = people[name] ?? everybody;
      for (const { name: limit, unit, control } of controls) {
        control.value = values[limit] === null ? "" : values[limit] / unit;
      }
    };
    const anyone = { maxlength: 100, placeholder: "everybody", autocomplete: "off" };
    const person = el("input", { type: "text", ...anyone, onchange });
    const controls = FIELDS.map((limit) => ({
      ...limit,
      control: el("input", { type: "number", min: 0, step: "any", placeholder: "no limit" }),
    }));
    const checkbox = el("input", { type: "checkbox" });
    const text = el("span", {}, "no individual limits: the limits for everybody apply");
    const ownLabel = el("label", { class: "ddp-queue-own" }, checkbox, text);
    onchange();
    const fields = controls.map(({ label, control }) => field(label, control));
    const hint = paragraph("hint", EMPTY_FIELD);
    const content = el("div", { class: "ddp-fields" }, field("Whose", person), ownLabel, fields, hint);
    const saved = await openDialog({
      title: "Limits",
      content,
      confirm: "Save",
      onConfirm: () => save(person, checkbox, controls),
    });
    if (saved) await this.afterAction();
  }
}

function save(person, own, controls) {
  const name = person.value.trim() || null;
  if (name !== null && own.checked) return callEndpoint("set_limits", null, name);
  const valueOf = ({ control, unit }) => (control.value === "" ? null : Number(control.value) * unit);
  const values = Object.fromEntries(controls.map((each) => [each.name, valueOf(each)]));
  return callEndpoint("set_limits", values, name);
}

function toText(values) {
  const limited = FIELDS.filter(({ name }) => values[name] !== null);
  return limited.map(({ name, format }) => format(values[name])).join(", ") || "no limit";
}

function mineText({ mine, used }) {
  const has = [`${count(used.num_ranks)} at once now`];
  if (used.disk_bytes !== undefined) has.push(`${bytes(used.disk_bytes)} kept`);
  return `You may have: ${toText(mine)}. You have ${has.join(", ")}.`;
}

/** Asks whether to stop all runs; resolves to true if they were stopped. */
function confirmStop(numRunning) {
  const runs =
    numRunning === 1
      ? "The live run saves a checkpoint and stops."
      : `The ${count(numRunning)} live runs save a checkpoint and stop.`;
  return openDialog({
    title: "Stop all runs?",
    content: el("p", {}, `${runs} The queue is paused, and queued runs keep their places.`),
    confirm: "Stop all",
    isDangerous: true,
    onConfirm: async () => showMessage((await callEndpoint("stop_all")).message),
  });
}

const REFRESH_EVERY_MS = 2000;

/** Fills an element with the queue page; returns a function that stops its updates. */
export function mountQueue(root) {
  document.title = "Queue · Rankscope";
  const note = new ConnectionNote();
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
  return askEvery(REFRESH_EVERY_MS, ask, (error) => note.heard(error));
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
    const call = () => [this.isPaused ? "resume_queue" : "pause_queue"];
    this.pause = actionButton("", "", call, afterAction);
    this.numRunning = 0;
    const stopAll = async () => {
      if (await confirmStop(this.numRunning)) await afterAction();
    };
    this.stopAll = textButton("Stop all …", stopAll, "stop");
    const attributes = { role: "group", "aria-label": "For teachers", hidden: !queue.may_manage };
    this.tools = el("div", { class: "ddp-buttons", ...attributes }, this.pause, this.stopAll);
    this.handed = new DeviceList();
    this.waiting = new WaitingList(queue.rule, afterAction);
    this.running = new RunningList();
    this.limits = new LimitsPanel(afterAction);
    this.jobs = new EngineJobs(queue.engine);
    this.devices = el("div", { class: "ddp-pair" }, this.handed, this.limits);
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
    showText(
      this.trouble,
      queue.trouble === null ? "" : `No run starts from the queue now: ${queue.trouble}`,
    );
    show(this.paused, queue.is_paused);
    setText(this.pause, queue.is_paused ? "Resume the queue" : "Pause the queue");
    this.numRunning = queue.running.length;
    enable(this.stopAll, this.numRunning > 0, null, "No run is live.");
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
