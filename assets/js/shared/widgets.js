// Small parts of several pages: the state of a run, a command with a Copy button.

import { el, icon, makeButton, setAttribute, setText } from "./dom.js";
import { state as stateWords } from "./format.js";

// A run's state as a pill, shared by all pages.

/** A pill with a run's state: colour, shape and word. */
export class StatePill {
  constructor() {
    this.element = el("span", { class: "ddp-pill", role: "status", "aria-live": "polite" });
  }

  /**
   * `isLossNaN`: the run trains on, or has ended, with a loss of NaN, and is marked as a warning. `detail`:
   * the reason why the processes of a live run are paused, or empty; its first word replaces the state.
   */
  update(state, isLossNaN = false, detail = "") {
    const { dataset } = this.element;
    if (dataset.state === state && "nan" in dataset === isLossNaN && this.detail === detail) return;
    dataset.state = state;
    this.detail = detail;
    if (isLossNaN) dataset.nan = "";
    else delete dataset.nan;
    setAttribute(this.element, "title", detail || null);
    const [shape, word] = detail ? [stateWords("paused")[0], detail.split(" ")[0]] : stateWords(state);
    this.element.replaceChildren(
      icon(isLossNaN ? "warning" : shape),
      el("span", {}, isLossNaN ? `${word}, loss is NaN` : word),
    );
  }
}

// The torchrun command of a run, and the equation that relates batch size, ranks and steps.

const COPIED_SHOWN_MS = 2000;

/** A command with a Copy button. `label` identifies the command for screen readers. */
export class CommandLine {
  constructor(command, label = "command") {
    this.code = el("code", {}, command);
    this.copy = makeButton({ class: "ddp-button ddp-button-small", "aria-label": `Copy: ${label}` }, "Copy");
    this.copy.addEventListener("click", async () => {
      setText(this.copy, (await copyText(this.code.textContent, this.code)) ? "Copied" : "Press Ctrl+C");
      setTimeout(() => setText(this.copy, "Copy"), COPIED_SHOWN_MS);
    });
    this.element = el(
      "div",
      { class: "ddp-command-line" },
      el("pre", { tabindex: 0, role: "group", "aria-label": label }, this.code),
      this.copy,
    );
  }

  update(command) {
    setText(this.code, command);
  }
}

/**
 * Copies a text to the clipboard. On plain http, where browsers refuse this, selects the text and copies the
 * selection. Returns true if the browser copied it.
 */
export async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    window.getSelection()?.selectAllChildren(shown);
    return document.execCommand("copy");
  }
}
