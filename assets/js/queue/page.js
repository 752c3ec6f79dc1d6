// The queue page: runs that wait for GPUs or CPU ranks, devices in use, limits, and the tools for teachers.

import { el, makeButton, section, setText, show, icon } from "../shared/dom.js";
import { openDialog, showMessage, actionButton } from "../shared/dialog.js";
import { bytes, count, number } from "../shared/format.js";
import { callEndpoint, address, fetchJson, askEvery } from "../shared/net.js";
import { EngineJobs, DeviceList, RunningList, WaitingList } from "./lists.js";
import { ConnectionNote, field } from "../shared/widgets.js";

const GB = 1e9;
const FIELDS = [
  {
    name: "num_ranks",
    label: "GPUs and CPU ranks at once",
    unit: 1,
    words: (value) =>
      value === 1 ? "1 GPU or CPU rank at once" : `${count(value)} GPUs or CPU ranks at once`,
  },
  {
    name: "minutes_per_run",
    label: "Minutes per run; then it saves and stops",
    unit: 1,
    words: (value) => `${number(value)} ${value === 1 ? "minute" : "minutes"} per run`,
  },
  {
    name: "disk_bytes",
    label: "Disk for all runs, in GB",
    unit: GB,
    words: (value) => `${bytes(value)} of disk`,
  },
  {
    name: "num_waiting",
    label: "Runs in the queue",
    unit: 1,
    words: (value) => `${count(value)} ${value === 1 ? "run" : "runs"} in the queue`,
  },
];

class LimitsPanel {
  constructor(afterAction) {
    this.afterAction = afterAction;
    this.mine = el("p", {});
    this.everybody = el("p", {});
    this.people = el("ul", { class: "ddp-queue-limits" });
    this.change = makeButton({ class: "ddp-button ddp-button-small" }, "Change the limits …");
    this.change.addEventListener("click", () => this.ask());
    this.element = section("Limits", "limits", this.mine, this.everybody, this.people, this.change);
  }

  update({ limits, may_manage: mayManage }) {
    this.limits = limits;
    show(this.mine, !mayManage);
    for (const place of [this.everybody, this.people, this.change]) show(place, mayManage);
    setText(this.mine, mineInWords(limits));
    if (!mayManage) return;
    setText(this.everybody, `Each person: ${inWords(limits.everybody)}.`);
    const words = Object.entries(limits.people).map(([name, values]) => `${name}: ${inWords(values)}.`);
    if (JSON.stringify(words) === this.shown) return;
    this.shown = JSON.stringify(words);
    this.people.replaceChildren(...words.map((line) => el("li", {}, line)));
  }

  async ask() {
    const person = el("input", {
      type: "text",
      maxlength: 100,
      placeholder: "everybody",
      autocomplete: "off",
    });
    const controls = FIELDS.map((limit) => ({
      ...limit,
      control: el("input", { type: "number", min: 0, step: "any", placeholder: "no limit" }),
    }));
    const fill = () => {
      const values = this.limits.people[person.value.trim()] ?? this.limits.everybody;
      for (const { name, unit, control } of controls) {
        control.value = values[name] === null ? "" : values[name] / unit;
      }
    };
    const own = el("input", { type: "checkbox" });
    const ownLabel = el(
      "label",
      { class: "ddp-queue-own", hidden: true },
      own,
      el("span", {}, "no individual limits: the limits for everybody apply"),
    );
    person.addEventListener("change", () => {
      show(ownLabel, person.value.trim() in this.limits.people);
      own.checked = false;
      fill();
    });
    fill();
    const hint = el(
      "p",
      { class: "ddp-hint" },
      "An empty field means no limit. With a name, the limits apply to that person instead of those for everybody.",
    );
    const content = el(
      "div",
      { class: "ddp-fields" },
      field("Whose", person),
      ownLabel,
      controls.map(({ label, control }) => field(label, control)),
      hint,
    );
    const saved = await openDialog({
      title: "Limits",
      content,
      confirm: "Save",
      onConfirm: () => save(person, own, controls),
    });
    if (saved) await this.afterAction();
  }
}

function save(person, own, controls) {
  const name = person.value.trim() || null;
  if (name !== null && own.checked) return callEndpoint("set_limits", null, name);
  const values = Object.fromEntries(
    controls.map((each) => [
      each.name,
      each.control.value === "" ? null : Number(each.control.value) * each.unit,
    ]),
  );
  return callEndpoint("set_limits", values, name);
}

function inWords(values) {
  const found = FIELDS.filter(({ name }) => values[name] !== null).map(({ name, words }) =>
    words(values[name]),
  );
  return found.length > 0 ? found.join(", ") : "no limit";
}

function mineInWords({ mine, used }) {
  const has = [`${count(used.num_ranks)} at once now`];
  if (used.disk_bytes !== undefined) has.push(`${bytes(used.disk_bytes)} kept`);
  return `You may have: ${inWords(mine)}. You have ${has.join(", ")}.`;
}

/** The button that stops all runs after a confirmation. */
class ConfirmStop {
  constructor(afterAction) {
    this.numRunning = 0;
    this.element = makeButton({ class: "ddp-button ddp-button-stop" }, "Stop all …");
    this.element.addEventListener("click", async () => {
      const runs =
        this.numRunning === 1
          ? "The live run saves a checkpoint and stops."
          : `The ${count(this.numRunning)} live runs save a checkpoint and stop.`;
      const stopped = await openDialog({
        title: "Stop all runs?",
        content: el("p", {}, `${runs} The queue is paused, and queued runs keep their places.`),
        confirm: "Stop all",
        isDangerous: true,
        onConfirm: async () => showMessage((await callEndpoint("stop_all")).message),
      });
      if (stopped) await afterAction();
    });
  }

  update(numRunning) {
    this.numRunning = numRunning;
    this.element.disabled = numRunning === 0;
    this.element.title = numRunning === 0 ? "No run is live." : "";
  }
}

// The page.

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
    this.stopAll = new ConfirmStop(afterAction);
    this.tools = el(
      "div",
      { class: "ddp-buttons", role: "group", "aria-label": "For teachers", hidden: !queue.may_manage },
      this.pause,
      this.stopAll,
    );
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
