// A player: plays, scrubs and steps between borders, by pointer and keyboard.

import { el, icon, setAttribute, setText } from "../../../shared/dom.js";

const TICKS = 1000;

export class Player {
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
      el("button", { type: "button", class: "ddp-button ddp-button-small", onclick: () => act(this) }, words);
    this.playWords = el("span", {}, "Play");
    this.playButton = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-small", onclick: () => this.toggle() },
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
