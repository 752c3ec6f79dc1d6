// "Look closer": instruments that show what happens inside a step, each in a fold of its own.

import { fingerprints } from "./fingerprints.js";
import { el, guarded, section, show } from "../../shared/dom.js";

/**
 * One instrument of a run.
 * @typedef {object} Instrument
 * @property {string} name as in its address, `#closer-NAME`
 * @property {string} title
 * @property {HTMLElement} element
 * @property {boolean} isOffered whether it has something to show for this run
 * @property {() => void} open called each time its fold is opened
 * @property {(payload: any) => void} update each message of the run's stream
 * @property {() => void} close called when the page is left
 */

/** @type {((runId: string, summary: any) => Instrument)[]} in the order of the page */
const MAKERS = [fingerprints];

/**
 * The instrument of a name, for a page other than the run's own; null where there is none.
 * @returns {Instrument | null}
 */
export function instrumentOf(name, runId, summary) {
  const made = MAKERS.map((make) => make(runId, summary));
  for (const other of made) if (other.name !== name) other.close();
  return made.find((instrument) => instrument.name === name) ?? null;
}

export class LookCloser {
  constructor(runId, summary) {
    this.instruments = MAKERS.map((make) => make(runId, summary));
    this.folds = this.instruments.map((instrument) => fold(instrument));
    this.element = section("Look closer", "look-closer", this.folds);
    this.showOffered();
  }

  update(payload) {
    for (const instrument of this.instruments) guarded(instrument.element, () => instrument.update(payload));
    this.showOffered();
  }

  showOffered() {
    this.instruments.forEach(({ isOffered }, index) => show(this.folds[index], isOffered));
    show(
      this.element,
      this.instruments.some(({ isOffered }) => isOffered),
    );
  }

  close() {
    for (const instrument of this.instruments) instrument.close();
  }
}

function fold(instrument) {
  const box = el(
    "details",
    { class: "ddp-fold ddp-card", id: `closer-${instrument.name}` },
    el("summary", {}, instrument.title),
    instrument.element,
  );
  box.addEventListener("toggle", () => box.open && instrument.open());
  return box;
}
