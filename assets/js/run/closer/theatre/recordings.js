// The recordings of a run: a button to record steps, a select, and the shown recording.

import { el, makeButton, setAttribute, setText, show } from "../../../shared/dom.js";
import { ago, bytes, count, LIVE_STATES } from "../../../shared/format.js";
import { fetchJson, runAddress } from "../../../shared/net.js";
import { act } from "../../../shared/dialog.js";

const DEFAULT_STEPS = 3;
const MAX_STEPS = 20;
// If a host shares no folder with this machine, the event can arrive before the file.
const ASK_AGAIN_MS = 1000;
const MAX_TRIES = 30;

export class Recordings {
  /**
   * @param {string} runId
   * @param {any} summary
   * @param {{ name: string, onChange: (recording: any, problem: string) => void }} about
   * `onChange` receives the shown recording, or null and a reason.
   */
  constructor(runId, summary, { name, onChange }) {
    this.runId = runId;
    this.onChange = onChange;
    this.state = summary.is_live ? "running" : "finished";
    this.mayChange = summary.may_change;
    /** @type {{ step: number, size_bytes: number, recorded_unix_s: number }[]} */
    this.list = [];
    this.chosen = -1;
    this.newestSeq = -1;
    this.isOpen = false;
    this.isWaiting = false;
    this.timer = 0;
    this.numSteps = el("input", {
      type: "number",
      class: "ddp-input ddp-recordings-number",
      min: 1,
      max: MAX_STEPS,
      value: DEFAULT_STEPS,
      "aria-label": `${name}: steps to record`,
    });
    this.button = makeButton({ class: "ddp-button ddp-button-main", onclick: () => this.record() }, "Record");
    this.select = el("select", {
      class: "ddp-wide",
      "aria-label": `${name}: recording`,
      onchange: () => this.choose(Number(this.select.value)),
    });
    this.words = el("p", { class: "ddp-hint", role: "status" });
    this.trace = el(
      "a",
      { class: "ddp-button ddp-button-small", download: "", hidden: true },
      "Download for Perfetto",
    );
    this.asking = el(
      "span",
      { class: "ddp-recordings-ask" },
      this.button,
      el("label", { class: "ddp-from" }, this.numSteps, "steps"),
    );
    this.element = el("div", { class: "ddp-recordings" }, this.asking, this.select, this.trace, this.words);
    show(this.select, false);
    this.refresh();
  }

  /** Called when the section is opened. */
  async open() {
    if (this.isOpen) return;
    this.isOpen = true;
    await this.look();
  }

  /** Applies a message of the run's stream. */
  update({ head, marks }) {
    if (head) this.state = head.state;
    let newest = null;
    for (const mark of marks ?? []) {
      if (mark.seq <= this.newestSeq) continue;
      this.newestSeq = mark.seq;
      if (mark.kind === "recording") newest = mark.step;
      if (mark.kind === "command" && mark.name === "record") this.heard(mark);
      if (mark.kind === "warning" && mark.code === "no_recording") this.failed(mark.message);
    }
    if (newest !== null) this.found(newest);
    if (this.isWaiting && !LIVE_STATES.has(this.state)) {
      this.failed("The run ended before the recording did.");
    }
    this.refresh();
  }

  async record() {
    const number = this.numSteps.valueAsNumber;
    if (await act(this.button, "record_steps", this.runId, number)) {
      this.isWaiting = true;
      this.say("Waiting for the step that all ranks agree on …");
    }
    this.refresh();
  }

  heard(mark) {
    if (!this.isWaiting) return;
    if (mark.accepted) this.say(`${mark.message.replace(/\.$/, "")} …`);
    else this.failed(mark.message);
  }

  failed(message) {
    if (!this.isWaiting) return;
    this.isWaiting = false;
    this.say(message);
  }

  found(step) {
    this.isWaiting = false;
    this.say("");
    if (this.isOpen) this.look(step);
  }

  /** Fetches the list of recordings and shows the latest one, or waits for the recording of step `wanted`. */
  async look(wanted = null, tries = 0) {
    clearTimeout(this.timer);
    try {
      this.list = (await fetchJson(runAddress(this.runId, "recordings"))).recordings;
    } catch (error) {
      this.onChange(null, error.message);
      return;
    }
    const isThere = wanted === null || this.list.some(({ step }) => step === wanted);
    if (!isThere && tries < MAX_TRIES) {
      this.timer = setTimeout(() => this.look(wanted, tries + 1), ASK_AGAIN_MS);
      return;
    }
    this.select.replaceChildren(
      ...this.list.map((each) =>
        el(
          "option",
          { value: each.step },
          `from step ${count(each.step)}, ${ago(each.recorded_unix_s)}, ${bytes(each.size_bytes)}`,
        ),
      ),
    );
    show(this.select, this.list.length > 1);
    if (this.list.length === 0) this.onChange(null, "");
    else await this.choose(isThere && wanted !== null ? wanted : this.list[0].step);
  }

  async choose(step) {
    this.select.value = String(step);
    this.trace.href = runAddress(this.runId, `recordings/${step}/trace.json`);
    this.chosen = step;
    let recording = null;
    let problem = "";
    try {
      recording = await fetchJson(runAddress(this.runId, `recordings/${step}`));
    } catch (error) {
      problem = error.message;
    }
    if (this.chosen !== step) return; // the user chose another one
    show(this.trace, recording !== null);
    this.onChange(recording, problem);
  }

  say(words) {
    setText(this.words, words);
  }

  refresh() {
    const isRunning = this.state === "running";
    show(this.asking, this.mayChange && LIVE_STATES.has(this.state));
    if (this.button.dataset.busy) return;
    this.button.disabled = !isRunning || this.isWaiting;
    const why = this.isWaiting ? "Steps are being recorded." : "The run is not training now.";
    setAttribute(this.button, "title", this.button.disabled ? why : "All ranks record their next steps.");
  }

  /** Instructions for a run without recordings. */
  howTo() {
    if (!LIVE_STATES.has(this.state)) {
      return "No step of this run was recorded. Steps can be recorded only while a run trains.";
    }
    return this.mayChange
      ? "No step has been recorded yet. Record makes every rank record its next steps; training continues."
      : "No step has been recorded yet. Only users who may change this run can record steps.";
  }

  close() {
    clearTimeout(this.timer);
  }
}
