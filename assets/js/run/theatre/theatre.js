// The common part of both theatres: the recordings of a run, the stage, and a player that plays, scrubs and
// steps between borders.

import { el, setAttribute, setText, show, guarded, icon } from "../../shared/dom.js";
import { ago, bytes, count, LIVE_STATES } from "../../shared/format.js";
import { fetchJson, runAddress } from "../../shared/net.js";
import { act } from "../../shared/dialog.js";
import { buttonLink, makeTable, offerOptions, paragraph, textButton } from "../../shared/widgets.js";

const DEFAULT_STEPS = 3;
const MAX_STEPS = 20;
// If a host shares no folder with this machine, the event can arrive before the file.
const ASK_AGAIN_MS = 1000;
const MAX_TRIES = 30;

class Recordings {
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
    this.button = textButton("Record", () => this.record(), "main");
    const onchange = () => this.choose(Number(this.select.value));
    this.select = el("select", { class: "ddp-wide", "aria-label": `${name}: recording`, onchange });
    this.text = el("p", { class: "ddp-hint", role: "status" });
    this.trace = buttonLink("Download for Perfetto", { download: "", hidden: true }, "small");
    const steps = el("label", { class: "ddp-from" }, this.numSteps, "steps");
    this.asking = el("span", { class: "ddp-recordings-ask" }, this.button, steps);
    this.element = el("div", { class: "ddp-recordings" }, this.asking, this.select, this.trace, this.text);
    show(this.select, false);
    this.refresh();
  }

  /** Called when the section is opened. */
  async open() {
    if (this.isOpen) return;
    this.isOpen = true;
    await this.loadList();
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
      setText(this.text, "Waiting for the step that all ranks agree on …");
    }
    this.refresh();
  }

  heard(mark) {
    if (!this.isWaiting) return;
    if (mark.accepted) setText(this.text, `${mark.message.replace(/\.$/, "")} …`);
    else this.failed(mark.message);
  }

  failed(message) {
    if (!this.isWaiting) return;
    this.isWaiting = false;
    setText(this.text, message);
  }

  found(step) {
    this.isWaiting = false;
    setText(this.text, "");
    if (this.isOpen) this.loadList(step);
  }

  /** Fetches the list of recordings and shows the latest one, or waits for the recording of step `wanted`. */
  async loadList(wanted = null, tries = 0) {
    clearTimeout(this.timer);
    try {
      this.list = (await fetchJson(runAddress(this.runId, "recordings"))).recordings;
    } catch (error) {
      this.onChange(null, error.message);
      return;
    }
    const isThere = wanted === null || this.list.some(({ step }) => step === wanted);
    if (!isThere && tries < MAX_TRIES) {
      this.timer = setTimeout(() => this.loadList(wanted, tries + 1), ASK_AGAIN_MS);
      return;
    }
    const text = ({ step, recorded_unix_s: at, size_bytes: size }) =>
      `from step ${count(step)}, ${ago(at)}, ${bytes(size)}`;
    offerOptions(
      this.select,
      this.list.map((each) => [each.step, text(each)]),
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

// A player: plays, scrubs and steps between borders, by pointer and keyboard.

const TICKS = 1000;

class Player {
  /**
   * @param {string} name
   * @param {number} seconds the duration
   * @param {(share: number, isPlaying: boolean) => void} onMove receives the elapsed fraction
   */
  constructor(name, seconds, onMove) {
    this.seconds = seconds;
    this.onMove = onMove;
    this.share = 0;
    /** @type {number[]} The fractions at which something changes, in ascending order. */
    this.borders = [0, 1];
    this.frame = 0;
    this.slider = el("input", {
      type: "range",
      class: "ddp-player-slider",
      min: 0,
      max: TICKS,
      step: 1,
      value: 0,
      "aria-label": `${name}: moment`,
      oninput: () => this.goTo(this.slider.valueAsNumber / TICKS),
      onkeydown: (event) => this.onKey(event),
    });
    this.playText = el("span", {}, "Play");
    this.playButton = textButton([icon("play"), this.playText], () => this.toggle(), "small");
    this.element = el(
      "div",
      { class: "ddp-player", role: "group", "aria-label": `${name}: play and step` },
      this.playButton,
      textButton("Back", () => this.step(-1), "small"),
      textButton("Next", () => this.step(1), "small"),
      this.slider,
    );
  }

  get isPlaying() {
    return this.frame !== 0;
  }

  toggle() {
    if (this.isPlaying) this.goTo(this.share);
    else this.play();
  }

  play() {
    if (this.share >= 1) this.share = 0;
    let before = performance.now();
    const draw = (now) => {
      this.share = Math.min(1, this.share + (now - before) / 1000 / this.seconds);
      before = now;
      this.frame = this.share < 1 ? requestAnimationFrame(draw) : 0;
      this.show();
    };
    this.frame = requestAnimationFrame(draw);
    this.show();
  }

  goTo(share) {
    this.close();
    this.share = Math.min(1, Math.max(0, share));
    this.show();
  }

  /** Moves to the next or the previous border. */
  step(direction) {
    const apart = 1e-9;
    const ahead = this.borders.find((border) => border > this.share + apart) ?? 1;
    const behind = this.borders.findLast((border) => border < this.share - apart) ?? 0;
    this.goTo(direction > 0 ? ahead : behind);
  }

  /**
   * Arrow keys move between borders, Space plays or pauses; Page Up, Page Down, Home and End keep the
   * slider's behaviour.
   */
  onKey(event) {
    const directions = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
    const direction = directions[event.key];
    if (direction) this.step(direction);
    else if (event.key === " ") this.toggle();
    else return;
    event.preventDefault();
  }

  show() {
    const isPlaying = this.isPlaying;
    if (this.wasPlaying !== isPlaying) {
      this.wasPlaying = isPlaying;
      setText(this.playText, isPlaying ? "Pause" : "Play");
      this.playButton.replaceChild(icon(isPlaying ? "pause" : "play"), this.playButton.firstChild);
    }
    this.slider.value = String(Math.round(this.share * TICKS));
    this.onMove(this.share, isPlaying);
  }

  /** Sets the text of the slider's value for screen readers. */
  say(text) {
    setAttribute(this.slider, "aria-valuetext", text);
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }
}

export class Theatre {
  /**
   * @param {string} runId
   * @param {object} theatre
   * @param {string} theatre.name as used in URLs
   * @param {string} theatre.title name, colon, description
   * @param {boolean} theatre.isOffered true if this run has something to show
   * @param {number} theatre.seconds playing time
   * @param {any} theatre.picture the content of the stage
   */
  constructor(runId, summary, { name, title, isOffered, seconds, picture }) {
    this.name = name;
    this.title = title;
    this.isOffered = isOffered;
    this.recording = null;
    this.problem = "";
    const [spoken] = title.split(":");
    this.recordings = new Recordings(runId, summary, {
      name: spoken,
      onChange: (recording, problem) => this.show(recording, problem),
    });
    this.player = new Player(spoken, seconds, (share, isPlaying) => this.moveTo(share, isPlaying));
    this.picture = picture;
    this.stage = el("div", { class: "ddp-theatre-stage" }, this.picture);
    this.nothing = paragraph("empty", "Looking for recordings …");
    this.tables = el("div", { class: "ddp-theatre-tables" });
    this.shown = el("div", { class: "ddp-theatre-shown", hidden: true });
    this.element = el("div", { class: "ddp-theatre" });
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.stage);
  }

  /** The reason why a recording cannot be shown, or "". @param {any} _recording */
  lacks(_recording) {
    return "";
  }

  /** Called when another recording was chosen. */
  showRecording() {}

  /** Shows a moment. @param {number} _share @param {boolean} _isPlaying */
  moveTo(_share, _isPlaying) {}

  /** Draws the picture in the current size. */
  draw() {}

  /** @param {any[]} shown elements that are visible only with a recording */
  arrange(caption, shown) {
    this.shown.append(...shown);
    const note = paragraph("caption", caption);
    this.element.append(note, this.recordings.element, this.nothing, this.shown);
  }

  /**
   * The controls above the stage: a select and the player.
   * @param {string} label
   * @param {(index: number) => void} onChoose
   */
  bar(label, onChoose) {
    const onchange = () => onChoose(Number(this.choice.value));
    this.choice = el("select", { class: "ddp-theatre-step", onchange });
    const labelled = el("label", { class: "ddp-from" }, label, this.choice);
    return el("div", { class: "ddp-theatre-bar" }, labelled, this.player);
  }

  open() {
    this.recordings.open();
  }

  update(payload) {
    this.recordings.update(payload);
    if (!this.recording && this.recordings.isOpen) this.sayNothing();
  }

  close() {
    this.player.close();
    this.recordings.close();
    this.resized.disconnect();
  }

  show(recording, problem) {
    const missing = recording ? this.lacks(recording) : "";
    this.recording = missing ? null : recording;
    this.problem = missing || problem;
    show(this.shown, this.recording !== null);
    show(this.nothing, this.recording === null);
    if (this.recording === null) this.sayNothing();
    else guarded(this.element, () => this.showRecording());
  }

  sayNothing() {
    setText(this.nothing, this.problem || this.recordings.howTo());
  }

  /** The size available for the picture, in pixels; the width is 0 while the section is closed. */
  get room() {
    const rem = Number.parseFloat(getComputedStyle(this.stage).fontSize);
    return { width: this.stage.clientWidth, rem };
  }
}

/** A table with a caption that scrolls; `className` is "ddp-theatre-words" if its last column is text. */
export function scrollingTable(caption, heads, rows, className = "") {
  return el(
    "div",
    { class: "ddp-theatre-scroll", role: "region", tabindex: 0, "aria-label": caption },
    makeTable(`ddp-theatre-table ${className}`, heads, rows, caption),
  );
}

/** Sets the size of a picture in pixels, and its name for screen readers. */
export function sizePicture(picture, width, height, label) {
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", String(width));
  picture.setAttribute("height", String(height));
  picture.setAttribute("aria-label", label);
}
