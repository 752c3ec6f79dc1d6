// An instrument of "Look closer" within a lesson.

import { instrumentOf } from "../../run/closer/look_closer.js";
import { lineSample } from "../../charts/chart.js";
import { el, guarded, show } from "../../shared/dom.js";
import { fetchJson, runAddress } from "../../shared/net.js";
import { inlines } from "../text.js";

export class InstrumentPicture {
  constructor(about) {
    this.about = about;
    /** @type {Map<string, { box: HTMLElement, instrument: any, seen: any, isOpen: boolean }>} By run id. */
    this.made = new Map();
    this.boxes = el("div", { class: "ddp-lesson-instruments" });
    this.empty = el("p", { class: "ddp-empty" }, "Appears as soon as the run trains.");
    this.element = el(
      "div",
      { class: "ddp-card ddp-lesson-picture ddp-lesson-wide" },
      this.empty,
      this.boxes,
      el("p", { class: "ddp-hint" }, inlines(about.caption)),
    );
  }

  update(runs) {
    const shown = this.about.run === null ? runs : runs.slice(this.about.run, this.about.run + 1);
    for (const run of shown) {
      if (run.runId === null || run.head === null || run.isGone) continue;
      if (!this.made.has(run.runId)) this.make(run);
      this.tell(run);
    }
    show(this.empty, this.made.size === 0);
  }

  make(run) {
    const box = el("section", {}, el("h3", {}, lineSample(run.index), run.name));
    /** @type {{ box: HTMLElement, instrument: any, seen: any, isOpen: boolean }} */
    const made = { box, instrument: null, seen: null, isOpen: false };
    this.made.set(run.runId, made);
    this.boxes.append(box);
    fetchJson(runAddress(run.runId, "summary")).then(
      (summary) => {
        made.instrument = instrumentOf(this.about.instrument, run.runId, summary);
        box.append(made.instrument?.element ?? el("p", {}, `There is no instrument ${this.about.instrument}.`));
        this.tell(run);
      },
      (error) => box.append(el("p", { class: "ddp-hint" }, error.message)),
    ); // prettier-ignore
  }

  /** Passes the latest payload of a run to its instrument, once. */
  tell({ runId, payload }) {
    const made = this.made.get(runId);
    if (!made?.instrument || made.seen === payload) return;
    made.seen = payload;
    guarded(made.instrument.element, () => made.instrument.update(payload));
    if (made.isOpen) return;
    made.isOpen = true;
    made.instrument.open();
  }

  close() {
    for (const { instrument } of this.made.values()) instrument?.close();
  }
}
