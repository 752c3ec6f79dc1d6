// "Look closer": instruments that show what happens inside a step, each in a collapsible section.

import { AllReduceTheatre } from "../theatre/all_reduce.js";
import { Fingerprints } from "./fingerprints.js";
import { SlowRank } from "./slow_rank.js";
import { StepTheatre } from "../theatre/step.js";
import { WhoSawWhat } from "./who_saw_what.js";
import { el, freeId, guarded, section, show } from "../../shared/dom.js";
import { afterPaint } from "../../shared/browser.js";
import { paragraph } from "../../shared/widgets.js";

/**
 * One instrument of a run.
 * @typedef {object} Instrument
 * @property {string} name as in its URL fragment, `#closer-NAME`
 * @property {string} title
 * @property {string} [about] a short description next to the title
 * @property {HTMLElement} element
 * @property {boolean} isOffered true if it has something to show for this run
 * @property {() => void} open called each time its section is opened
 * @property {(payload: any) => void} update called with each message of the run's stream
 * @property {() => void} close called when the page is left
 */

/** @type {(new (runId: string, summary: any) => Instrument)[]} In the order of the page. */
const KINDS = [StepTheatre, AllReduceTheatre, WhoSawWhat, Fingerprints, SlowRank];
const PREFIX = "#closer-";

/**
 * Returns the instrument with a name, for a page other than the run's; null if it does not exist.
 * @returns {Instrument | null}
 */
export function instrumentOf(name, runId, summary) {
  const made = KINDS.map((Kind) => new Kind(runId, summary));
  for (const other of made) if (other.name !== name) other.close();
  return made.find((instrument) => instrument.name === name) ?? null;
}

export class LookCloser {
  constructor(runId, summary) {
    const kinds = summary.config.script ? [Fingerprints] : KINDS;
    this.instruments = kinds.map((Kind) => new Kind(runId, summary));
    this.folds = this.instruments.map((instrument) => fold(instrument));
    const text = "What happens inside this run. Each part states what is measured and what is computed.";
    this.element = section("Look closer", "look-closer", paragraph("caption", text), this.folds);
    /** The section named by the URL fragment, until it has been opened. */
    this.target = wantedName();
    this.onAddress = () => {
      this.target = wantedName();
      this.showWanted();
    };
    window.addEventListener("hashchange", this.onAddress);
    this.showOffered();
  }

  update(payload) {
    for (const instrument of this.instruments) guarded(instrument.element, () => instrument.update(payload));
    this.showOffered();
    this.showWanted();
  }

  showOffered() {
    this.instruments.forEach(({ isOffered }, index) => show(this.folds[index], isOffered));
    show(
      this.element,
      this.instruments.some(({ isOffered }) => isOffered),
    );
  }

  /** Opens the section named by the URL fragment and scrolls to it, once it is available. */
  showWanted() {
    const index = this.instruments.findIndex(({ name, isOffered }) => isOffered && name === this.target);
    if (index === -1) return;
    this.target = null;
    const box = this.folds[index];
    box.open = true;
    // The final position is known only after the content was laid out.
    afterPaint(() => box.scrollIntoView({ block: "start" }));
  }

  close() {
    window.removeEventListener("hashchange", this.onAddress);
    for (const instrument of this.instruments) instrument.close();
  }
}

function wantedName() {
  const { hash } = window.location;
  return hash.startsWith(PREFIX) ? decodeURIComponent(hash.slice(PREFIX.length)) : null;
}

function fold(instrument) {
  const { name, title, about, element } = instrument;
  const box = el(
    "details",
    { class: "ddp-closer", id: freeId(`closer-${name}`) },
    el("summary", {}, el("h3", {}, title), about ? el("span", { class: "ddp-closer-about" }, about) : null),
    el("div", { class: "ddp-closer-inside" }, element),
  );
  box.addEventListener("toggle", () => box.open && instrument.open());
  return box;
}
