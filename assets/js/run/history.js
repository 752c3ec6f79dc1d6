// The events of a run and its checkpoints on disk.

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
  state as stateText,
  capital,
} from "../shared/format.js";
import { resumeFrom } from "./header/header.js";
import { runAddress } from "../shared/net.js";
import { buttonLink, makeTable, paragraph, textButton } from "../shared/widgets.js";

const NO_DOWNLOAD =
  "No download: this run was broken on purpose, so its model is not useful. Its numbers can be exported.";
const SCRIPT_SAVES = "A script that calls watch.load(…) and watch.save(…) saves one";
const MAX_EVENTS = 200;
const COMMAND_WORDS = new Map([
  ["set_lr", "learning rate"],
  ["slow_rank", "slow a rank down"],
]);
/** The reason of a checkpoint, as text. */
const SAVED_BECAUSE = new Map([
  ["button", "on request"],
  ["schedule", "as planned"],
  ["stop", "before stopping"],
  ["end", "at the end"],
  ["best", "the best so far"],
]);

/**
 * The reason of a checkpoint as text; null if this version does not know it.
 * @param {unknown} reason
 */
export const saveReason = (reason) => SAVED_BECAUSE.get(String(reason)) ?? null;

/**
 * The hover text of a checkpoint's mark.
 * @param {{ step: number, size_bytes: number, reason?: unknown }} item
 */
export function checkpointText(item) {
  const why = saveReason(item.reason);
  return `checkpoint at step ${count(item.step)}${why ? `, ${why}` : ""}, ${bytes(item.size_bytes)}`;
}

export class CheckpointTable {
  constructor(runId, { num_steps: numSteps, may_change: mayChange, mistake, config }, afterAction) {
    this.runId = runId;
    this.numSteps = numSteps;
    this.isScript = Boolean(config.script);
    this.mayChange = mayChange;
    this.isBroken = Boolean(mistake);
    this.afterAction = afterAction;
    this.checkpoints = [];
    this.best = null;
    this.state = "queued";
    this.body = el("tbody", {});
    const every = config.checkpoint_every_steps;
    const period = every ? `every ${count(every)} steps` : "every epoch";
    const saves = this.isScript ? SCRIPT_SAVES : `One is saved after ${period}, and`;
    this.empty = paragraph("empty", `None yet. ${saves} when you press Checkpoint or Stop.`);
    this.table = makeTable("ddp-table", ["step", "size", "saved", null], this.body);
    show(this.table, false);
    const scroll = el("div", { class: "ddp-scroll", tabindex: 0 }, this.table);
    const note = this.isBroken ? paragraph("hint", NO_DOWNLOAD) : null;
    this.element = section("Checkpoints", "checkpoints", this.empty, scroll, note);
  }

  /** `best` is the step of the best evaluation so far, or null. */
  update({ checkpoints, best, head }) {
    // A resume with another global batch changes the number of steps.
    this.numSteps = head.num_steps;
    const stored = checkpoints ?? this.checkpoints;
    const isSame = best === this.best && JSON.stringify(stored) === JSON.stringify(this.checkpoints);
    if (!isSame) {
      this.checkpoints = stored;
      this.best = best;
      this.body.replaceChildren(...stored.map((item) => this.row(item)));
      show(this.empty, stored.length === 0);
      show(this.table, stored.length > 0);
    }
    if (!isSame || head.state !== this.state) {
      this.state = head.state;
      for (const button of this.body.querySelectorAll("button")) this.enable(button);
    }
  }

  row(item) {
    const { step, saved_unix_s: savedAt } = item;
    const resume = async () => {
      await resumeFrom(button, this.runId, step);
      this.enable(button);
      this.afterAction();
    };
    const button = textButton("Resume from here", resume, "small", { "data-step": step });
    const best = step === this.best ? el("span", { class: "ddp-best" }, "best") : null;
    const requested =
      item.reason === "button" ? el("span", { class: "ddp-best ddp-requested" }, "on request") : null;
    const actions = [this.mayChange ? button : null, this.isBroken ? null : this.download(step)];
    return el(
      "tr",
      {},
      el("td", { "data-label": "step" }, count(step), best, requested),
      el("td", { "data-label": "size" }, bytes(item.size_bytes)),
      el("td", { "data-label": "saved", title: dateTime(savedAt) }, clock(savedAt)),
      el("td", {}, el("div", { class: "ddp-row-actions" }, actions)),
    );
  }

  download(step) {
    const href = runAddress(this.runId, `checkpoints/${step}/download`);
    const label = `Download the checkpoint of step ${count(step)}`;
    return buttonLink("Download", { download: "", href, "aria-label": label }, "small");
  }

  enable(button) {
    const step = Number(button.dataset.step);
    const isLive = LIVE_STATES.has(this.state);
    const isEnd =
      !this.isScript && this.state === "finished" && this.numSteps !== null && step >= this.numSteps;
    button.disabled = isLive || isEnd;
    const text = isEnd
      ? "This is the last step: nothing is left to train."
      : `Starts torchrun again from step ${count(step)}. The curve continues from there.`;
    button.title = isLive ? "Available when the run has ended: press Stop first." : text;
  }
}

export class EventList {
  constructor() {
    this.list = el("ol", { class: "ddp-events-list", tabindex: 0, "aria-label": "Events, newest first" });
    this.newest = -1;
    this.filter = new EventFilter();
    this.element = section("What happened", "events", this.list);
  }

  update({ marks, isSnapshot }) {
    if (isSnapshot) {
      this.list.replaceChildren();
      this.newest = -1;
      this.filter = new EventFilter();
    }
    for (const mark of marks) {
      if (mark.seq <= this.newest) continue;
      this.newest = mark.seq;
      const { isNew, replaces } = this.filter.take(mark);
      if (replaces !== null) this.list.querySelector(`[data-seq="${replaces}"]`)?.remove();
      if (isNew) this.list.prepend(eventItem(mark));
    }
    while (this.list.childElementCount > MAX_EVENTS) this.list.lastElementChild.remove();
  }
}

// Commands whose result is reported by a state event.
const REPORTED_BY_STATE = new Set(["stop", "pause", "resume"]);

/** Selects the events to list, so that one action is one entry. */
export class EventFilter {
  constructor() {
    /** @type {number | null} `seq` of the entry "stopping", until the run has stopped. */
    this.stopping = null;
    /** @type {Set<number>} Steps of requested checkpoints whose command was not answered yet. */
    this.saved = new Set();
    /** @type {string | null} The message of a refused command, until the next event. */
    this.refusal = null;
  }

  /**
   * Returns whether to list an event, and the `seq` of the entry that it replaces.
   * @param {Record<string, any>} mark
   * @returns {{ isNew: boolean, replaces: number | null }}
   */
  take(mark) {
    const refusal = this.refusal;
    this.refusal = mark.kind === "command" && !mark.accepted ? mark.message : null;
    if (mark.kind === "checkpoint" && mark.reason === "button") this.saved.add(mark.step);
    if (mark.kind === "command" && mark.accepted) {
      const isReported =
        REPORTED_BY_STATE.has(mark.name) || (mark.name === "checkpoint" && this.saved.delete(mark.step));
      return { isNew: !isReported, replaces: null };
    }
    if (mark.kind !== "state") return { isNew: true, replaces: null };
    const replaces = mark.state === "stopped" ? this.stopping : null;
    this.stopping = mark.state === "stopping" ? mark.seq : null;
    // After a refused stop the run continues, and the state event repeats the refusal as its reason.
    return { isNew: refusal === null || mark.reason !== refusal, replaces };
  }
}

/**
 * The result of a command or the reason of its refusal; prefixed with the command unless the message names
 * it.
 * @param {Record<string, any>} mark
 */
export function commandText({ name, message }) {
  const word = COMMAND_WORDS.get(name) ?? String(name);
  return String(message).toLowerCase().includes(word) ? message : `${capital(word)}: ${message}`;
}

function eventItem(mark) {
  const [shape, text] = describe(mark);
  const time = el("time", { datetime: isoTime(mark.time_unix_s), title: dateTime(mark.time_unix_s) });
  setText(time, clock(mark.time_unix_s));
  return el("li", { "data-kind": mark.kind, "data-seq": mark.seq }, time, icon(shape), el("span", {}, text));
}

/** The icon and the text of an event. @param {Record<string, any>} mark */
export function describe(mark) {
  if (mark.kind === "state") {
    const [shape, word] = stateText(mark.state);
    const reason = String(mark.reason ?? "");
    const saysIt = reason.toLowerCase().startsWith(word);
    return [shape, saysIt ? reason : `${capital(String(word))}. ${reason}`];
  }
  if (mark.kind === "checkpoint") {
    const why = saveReason(mark.reason) ?? mark.reason;
    const saved = `Checkpoint at step ${count(mark.step)}, ${why}: ${bytes(mark.size_bytes)}, training paused for ${shortTime(mark.stall_s)}.`;
    return ["save", `${saved}${removedText(mark.removed ?? [])}`];
  }
  if (mark.kind === "recording") {
    const [first, last] = [mark.step, mark.step + mark.num_steps - 1].map(count);
    const which = mark.num_steps === 1 ? `Step ${first} was` : `Steps ${first} to ${last} were`;
    const took = `${bytes(mark.size_bytes)}, in ${shortTime(mark.duration_s)}`;
    return ["flag", `${which} recorded: ${took}. See Look closer.`];
  }
  if (mark.kind === "command") return [mark.accepted ? "flag" : "cross", commandText(mark)];
  if (mark.kind === "finding") {
    return [mark.level === "mistake" ? "warning" : "flag", `The review of the code: ${mark.message}`];
  }
  const sign = { error: "cross", warning: "warning" }[mark.kind];
  if (sign) return [sign, `${mark.message}${mark.hint ? ` ${mark.hint}` : ""}`];
  return ["flag", `An event from a newer version of this program (${shortName(mark.kind)}).`];
}

function removedText(steps) {
  if (!Array.isArray(steps) || steps.length === 0) return "";
  return ` Deleted to save space: ${steps.length === 1 ? "step" : "steps"} ${steps.map(count).join(", ")}.`;
}
