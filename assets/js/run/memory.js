// The memory of a rank: predicted before the start and measured.

import { el, section, setAttribute, setText, show } from "../shared/dom.js";
import { bytes } from "../shared/format.js";
import { term } from "../shared/terms.js";

/** The parts of the prediction, linked to the glossary. */
const TERMS = {
  parameters: () => term("parameters"),
  gradients: () => term("gradient", "gradients"),
  optimizer: () => term("optimizer state"),
  activations: () => term("activations"),
};

export class MemoryPanel {
  constructor({ memory }) {
    this.predicted = memory;
    this.measured = el("div", { class: "ddp-memory-part ddp-memory-measured" });
    this.predictedBar = el("div", { class: "ddp-memory-bar", role: "img" });
    this.measuredBar = el("div", { class: "ddp-memory-bar", role: "img" }, this.measured);
    this.words = el("p", { class: "ddp-hint" }, "\u00a0");
    const legend = Object.keys(TERMS).map((name) =>
      el(
        "span",
        {},
        el("i", { class: `ddp-part ddp-memory-${name}`, "aria-hidden": "true" }),
        TERMS[name](),
        memory ? ` ${bytes(memory[`${name}_bytes`])}` : null,
      ),
    );
    this.element = section(
      "Memory of a rank",
      "memory",
      el("p", { class: "ddp-legend" }, legend),
      el("p", { class: "ddp-memory-title" }, "predicted"),
      this.predictedBar,
      el("p", { class: "ddp-memory-title" }, "measured, peak so far"),
      this.measuredBar,
      this.words,
    );
    show(this.element, Boolean(memory));
    if (memory) this.draw(null);
  }

  /** With several nodes, `ranks` may be incomplete, but `nodes` has the maximum of each node. */
  update(ranks, deviceKind, nodes) {
    if (!this.predicted || !ranks) return;
    const all = nodes ? nodes.map(({ grown_bytes: most }) => most) : ranks.map((rank) => growth(rank));
    const grown = all.filter((value) => value !== null);
    const most = Math.max(0, ...grown);
    const total = this.draw(most);
    if (grown.length === 0) {
      setText(
        this.words,
        `Predicted ${bytes(total)}. This run did not report what its ranks held before the model was built.`,
      );
      return;
    }
    const rest =
      deviceKind === "cuda"
        ? "The prediction is a lower bound: gradients of activations and kernel workspaces are not included."
        : "The prediction is a lower bound: gradients of activations, kernel workspaces, data and cached memory are not included.";
    setText(
      this.words,
      `Predicted ${bytes(total)}, measured ${bytes(most)} beyond what the process held before the model was built. ${rest}`,
    );
  }

  /** Draws both bars; `most` is null before the first measurement. Returns the predicted total in bytes. */
  draw(most) {
    const total = Object.keys(TERMS).reduce((sum, name) => sum + (this.predicted[`${name}_bytes`] ?? 0), 0);
    const scale = Math.max(most ?? 0, total);
    this.predictedBar.replaceChildren(
      ...Object.keys(TERMS).map((name) => {
        const part = el("div", { class: `ddp-memory-part ddp-memory-${name}` });
        part.style.width = `${(100 * (this.predicted[`${name}_bytes`] ?? 0)) / scale}%`;
        return part;
      }),
    );
    this.measured.style.width = `${(100 * (most ?? 0)) / scale}%`;
    setAttribute(this.predictedBar, "aria-label", `predicted ${bytes(total)}`);
    setAttribute(
      this.measuredBar,
      "aria-label",
      most === null ? "not measured yet" : `measured ${bytes(most)}`,
    );
    return total;
  }
}

/** The bytes that a rank allocated since its start; null if not measured. */
export function growth(rank) {
  const { peak_memory_bytes: peak, base_memory_bytes: base } = rank;
  return typeof peak === "number" && typeof base === "number" ? Math.max(0, peak - base) : null;
}
