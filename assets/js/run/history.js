// What happened to the run, and the checkpoints that are on disk.

import { el, icon, section, setText, show } from "../shared/dom.js";
import {
  bytes,
  clock,
  count,
  dateTime,
  isoTime,
  LIVE_STATES,
  shortName,
  shortTime,
  state as stateWords,
} from "../shared/format.js";
import { resumeFrom } from "./resume_from.js";
import { runAddress } from "../shared/net.js";

const NO_DOWNLOAD =
  "No download: this run was broken on purpose, so what it has learnt is no good model. Its numbers can be exported.";
const MAX_EVENTS = 200;
const COMMAND_WORDS = new Map([
  ["set_lr", "learning rate"],
  ["slow_rank", "slow a rank down"],
]);
const SAVED_BECAUSE = {
  button: "Checkpoint was pressed",
  schedule: "as planned",
  stop: "before stopping",
  end: "at the end",
  best: "the best so far",
};

export class CheckpointTable {
  constructor(runId, { num_steps: numSteps, may_change: mayChange, mistake }, afterAction) {
    this.runId = runId;
    this.numSteps = numSteps;
    this.mayChange = mayChange;
    this.isBroken = Boolean(mistake);
    this.afterAction = afterAction;
    this.checkpoints = [];
    this.best = null;
    this.state = "queued";
    this.body = el("tbody", {});
    this.empty = el(
      "p",
      { class: "ddp-empty" },
      "None yet. One is saved after every epoch, unless you chose otherwise, and when you press Checkpoint or Stop.",
    );
    this.table = el(
      "table",
      { class: "ddp-table", hidden: true },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["step", "size", "saved", el("span", { class: "ddp-unseen" }, "What to do")].map((title) =>
            el("th", { scope: "col" }, title),
          ),
        ),
      ),
      this.body,
    );
    this.element = section(
      "Checkpoints",
      "checkpoints",
      this.empty,
      el("div", { class: "ddp-scroll", tabindex: 0 }, this.table),
      this.isBroken ? el("p", { class: "ddp-hint" }, NO_DOWNLOAD) : null,
    );
  }

  /** `best` is the step of the best evaluation so far, or null. */
  update(checkpoints, state, best) {
    const held = checkpoints ?? this.checkpoints;
    const isSame = best === this.best && JSON.stringify(held) === JSON.stringify(this.checkpoints);
    if (!isSame) {
      this.checkpoints = held;
      this.best = best;
      this.body.replaceChildren(...held.map((item) => this.row(item)));
      show(this.empty, held.length === 0);
      show(this.table, held.length > 0);
    }
    if (!isSame || state !== this.state) {
      this.state = state;
      for (const button of this.body.querySelectorAll("button")) this.enable(button);
    }
  }

  row(item) {
    const button = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-small", "data-step": item.step },
      "Resume from here",
    );
    button.addEventListener("click", async () => {
      await resumeFrom(button, this.runId, item.step);
      this.enable(button);
      this.afterAction();
    });
    return el(
      "tr",
      {},
      el(
        "td",
        { "data-label": "step" },
        count(item.step),
        item.step === this.best ? el("span", { class: "ddp-best" }, "best") : null,
      ),
      el("td", { "data-label": "size" }, bytes(item.size_bytes)),
      el("td", { "data-label": "saved", title: dateTime(item.saved_unix_s) }, clock(item.saved_unix_s)),
      el(
        "td",
        {},
        el(
          "div",
          { class: "ddp-row-actions" },
          this.mayChange ? button : null,
          this.isBroken ? null : this.download(item.step),
        ),
      ),
    );
  }

  download(step) {
    return el(
      "a",
      {
        class: "ddp-button ddp-button-small",
        download: "",
        href: runAddress(this.runId, `checkpoints/${step}/download`),
        "aria-label": `Download the checkpoint of step ${step}`,
      },
      "Download",
    );
  }

  enable(button) {
    const step = Number(button.dataset.step);
    const isLive = LIVE_STATES.has(this.state);
    const isEnd = this.state === "finished" && this.numSteps !== null && step >= this.numSteps;
    button.disabled = isLive || isEnd;
    const words = isEnd
      ? "This is the last step: nothing is left to train."
      : `Starts torchrun again from step ${count(step)}. The curve continues from there.`;
    button.title = isLive ? "Available when the run has ended: press Stop first." : words;
  }
}

export class EventList {
  constructor() {
    this.list = el("ol", { class: "ddp-events-list", tabindex: 0, "aria-label": "Events, newest first" });
    this.newest = -1;
    this.element = section("What happened", "events", this.list);
  }

  update(marks, isSnapshot) {
    if (isSnapshot) {
      this.list.replaceChildren();
      this.newest = -1;
    }
    for (const mark of marks) {
      if (mark.seq <= this.newest) continue;
      this.newest = mark.seq;
      this.list.prepend(eventItem(mark));
    }
    while (this.list.childElementCount > MAX_EVENTS) this.list.lastElementChild.remove();
  }
}

function eventItem(mark) {
  const [shape, words] = describe(mark);
  const time = el("time", { datetime: isoTime(mark.time_unix_s), title: dateTime(mark.time_unix_s) });
  setText(time, clock(mark.time_unix_s));
  return el("li", { "data-kind": mark.kind }, time, icon(shape), el("span", {}, words));
}

/** The icon and the plain words of an event. */
function describe(mark) {
  if (mark.kind === "state") {
    const [shape, word] = stateWords(mark.state);
    const reason = String(mark.reason ?? "");
    const saysIt = reason.toLowerCase().startsWith(word);
    return [shape, saysIt ? reason : `${capital(word)}. ${reason}`];
  }
  if (mark.kind === "checkpoint") {
    const why = SAVED_BECAUSE[mark.reason] ?? mark.reason;
    const saved = `Checkpoint at step ${count(mark.step)}, ${why}: ${bytes(mark.size_bytes)}, training paused for ${shortTime(mark.stall_s)}.`;
    return ["save", `${saved}${removedWords(mark.removed ?? [])}`];
  }
  if (mark.kind === "recording") {
    const last = mark.step + mark.num_steps - 1;
    const which =
      mark.num_steps === 1
        ? `Step ${count(mark.step)} was`
        : `Steps ${count(mark.step)} to ${count(last)} were`;
    return [
      "flag",
      `${which} recorded: ${bytes(mark.size_bytes)}, in ${shortTime(mark.duration_s)}. See Look closer.`,
    ];
  }
  if (mark.kind === "command") {
    return [
      mark.accepted ? "flag" : "cross",
      `${capital(COMMAND_WORDS.get(mark.name) ?? mark.name)}: ${mark.message}`,
    ];
  }
  return describeMessage(mark);
}

/** A warning or an error; a kind that is not known here is a newer version's. */
function describeMessage(mark) {
  const hint = mark.hint ? ` ${mark.hint}` : "";
  if (mark.kind === "error") return ["cross", `${mark.message}${hint}`];
  if (mark.kind === "warning") return ["warning", `${mark.message}${hint}`];
  return ["flag", `An event from a newer version of this program (${shortName(mark.kind)}).`];
}

function removedWords(steps) {
  if (!Array.isArray(steps) || steps.length === 0) return "";
  return ` Deleted to save space: ${steps.length === 1 ? "step" : "steps"} ${steps.map(count).join(", ")}.`;
}

function capital(word) {
  const text = String(word ?? "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
