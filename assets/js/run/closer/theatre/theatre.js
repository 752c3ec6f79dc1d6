// The common part of both theatres: the choice of a recording, the stage, and a player that plays, scrubs and
// steps between borders.

import { el, guarded, icon, makeButton, setAttribute, setText, show } from "../../../shared/dom.js";
import { Recordings } from "./recordings.js";

// A player: plays, scrubs and steps between borders, by pointer and keyboard.

const TICKS = 1000;

class Player {
  /**
   * @param {{ name: string, seconds: number, onMove: (share: number, isPlaying: boolean) => void }} about
   * `seconds`: the duration; `onMove` receives the elapsed fraction.
   */
  constructor({ name, seconds, onMove }) {
    this.seconds = seconds;
    this.onMove = onMove;
    this.share = 0;
    /** @type {number[]} */
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
    const small = (words, act) =>
      makeButton({ class: "ddp-button ddp-button-small", onclick: () => act(this) }, words);
    this.playWords = el("span", {}, "Play");
    this.playButton = makeButton(
      { class: "ddp-button ddp-button-small", onclick: () => this.toggle() },
      icon("play"),
      this.playWords,
    );
    this.element = el(
      "div",
      { class: "ddp-player", role: "group", "aria-label": `${name}: play and step` },
      this.playButton,
      small("Back", () => this.step(-1)),
      small("Next", () => this.step(1)),
      this.slider,
    );
  }

  /** Sets the fractions at which something changes, in ascending order. */
  setBorders(borders) {
    this.borders = borders;
  }

  get isPlaying() {
    return this.frame !== 0;
  }

  toggle() {
    if (this.isPlaying) this.pause();
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

  pause() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.show();
  }

  goTo(share) {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
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
      setText(this.playWords, isPlaying ? "Pause" : "Play");
      this.playButton.replaceChild(icon(isPlaying ? "pause" : "play"), this.playButton.firstChild);
    }
    this.slider.value = String(Math.round(this.share * TICKS));
    this.onMove(this.share, isPlaying);
  }

  /** Sets the text of the slider's value for screen readers. */
  say(words) {
    setAttribute(this.slider, "aria-valuetext", words);
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }
}

// The common part of both theatres: the choice of a recording, the stage, and the message without a
// recording.

export class Theatre {
  /**
   * @param {string} runId
   * @param {any} summary
   * @param {object} theatre
   * @param {string} theatre.name as used in URLs
   * @param {string} theatre.title name, colon, description
   * @param {boolean} theatre.isOffered true if this run has something to show
   * @param {number} theatre.seconds playing time
   * @param {any} theatre.picture the content of the stage
   * @param {(recording: any) => string} [theatre.lacks] the reason why a recording cannot be shown, or ""
   * @param {() => void} theatre.onRecording called when another recording was chosen
   * @param {(share: number, isPlaying: boolean) => void} theatre.onMove
   * @param {() => void} theatre.onResize
   */
  constructor(runId, summary, theatre) {
    const { name, title, isOffered, seconds, picture, lacks, onRecording, onMove, onResize } = theatre;
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
    this.player = new Player({ name: spoken, seconds, onMove });
    this.picture = picture;
    this.stage = el("div", { class: "ddp-theatre-stage" }, this.picture.element);
    this.nothing = el("p", { class: "ddp-empty" }, "Looking for recordings …");
    this.tables = el("div", { class: "ddp-theatre-tables" });
    this.shown = el("div", { class: "ddp-theatre-shown", hidden: true });
    this.element = el("div", { class: "ddp-theatre" });
    this.lacks = lacks ?? (() => "");
    this.onRecording = onRecording;
    this.resized = new ResizeObserver(onResize);
    this.resized.observe(this.stage);
  }

  /**
   * @param {any[]} caption
   * @param {any[]} shown elements that are visible only with a recording
   */
  arrange(caption, shown) {
    this.shown.append(...shown);
    this.element.append(
      el("p", { class: "ddp-caption" }, ...caption),
      this.recordings.element,
      this.nothing,
      this.shown,
    );
  }

  /**
   * The controls above the stage: a select and the player.
   * @param {string} label
   * @param {(index: number) => void} onChoose
   */
  bar(label, onChoose) {
    this.choice = el("select", {
      class: "ddp-theatre-step",
      onchange: () => onChoose(Number(this.choice.value)),
    });
    return el(
      "div",
      { class: "ddp-theatre-bar" },
      el("label", { class: "ddp-from" }, label, this.choice),
      this.player.element,
    );
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
    else guarded(this.element, this.onRecording);
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
