// The menu of a checkpoint's mark: resume from it, or download it.

import { el, setText, show } from "../../shared/dom.js";
import { bytes, clock, count } from "../../shared/format.js";
import { CHECKPOINT } from "./figures.js";
import { savedBecause } from "../history.js";
import { resumeFrom } from "../resume_from.js";
import { runAddress } from "../../shared/net.js";

export class CheckpointMenu {
  /** `onResume()` is called after the run was resumed; null if the user may not change the run. */
  constructor(runId, onResume) {
    this.runId = runId;
    this.mayResume = onResume !== null;
    this.checkpoints = [];
    this.words = el("p", {});
    this.resume = el("button", { type: "button", class: "ddp-button ddp-button-small" }, "Resume from here");
    this.download = el("a", { class: "ddp-button ddp-button-small", download: "" }, "Download");
    const close = el(
      "button",
      { type: "button", class: "ddp-toast-close", "aria-label": "Close", onclick: () => this.hide() },
      "×",
    );
    this.element = el(
      "div",
      { class: "ddp-checkpoint-menu", role: "dialog", "aria-label": "Checkpoint", hidden: true },
      this.words,
      this.mayResume ? this.resume : null,
      this.download,
      close,
    );
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
    this.resume.addEventListener("click", async () => {
      if (await resumeFrom(this.resume, runId, this.step)) this.hide();
      onResume();
    });
  }

  /** Listens to clicks on the plot, once Plotly has created it. */
  attach(plot) {
    if (this.plot === plot || !plot.on) return;
    this.plot = plot;
    plot.on("plotly_click", ({ points, event }) => {
      const point = points.find((candidate) => candidate.data.name.startsWith(CHECKPOINT));
      if (point) this.open(point.customdata, event);
    });
  }

  take(checkpoints) {
    this.checkpoints = checkpoints;
    if (!this.element.hidden && !checkpoints.some((item) => item.step === this.step)) this.hide();
  }

  open(step, { clientX }) {
    const item = this.checkpoints.find((candidate) => candidate.step === step);
    if (!item) return;
    this.step = step;
    const why = savedBecause(item.reason);
    const when = `saved ${why ? `${why}, ` : ""}${clock(item.saved_unix_s)}`;
    setText(this.words, `Step ${count(step)}, ${bytes(item.size_bytes)}, ${when}`);
    this.download.href = runAddress(this.runId, `checkpoints/${step}/download`);
    show(this.element, true);
    const box = this.element.parentElement.getBoundingClientRect();
    const left = Math.max(8, Math.min(clientX - box.left - 20, box.width - this.element.offsetWidth - 8));
    this.element.style.left = `${left}px`;
    (this.mayResume ? this.resume : this.download).focus({ preventScroll: true });
  }

  hide() {
    show(this.element, false);
  }
}
