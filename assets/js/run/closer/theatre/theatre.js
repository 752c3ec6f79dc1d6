// The common part of both theatres: the choice of a recording, the stage, and the message without a
// recording.

import { el, guarded, setText, show } from "../../../shared/dom.js";
import { Player } from "./player.js";
import { Recordings } from "./recordings.js";

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
