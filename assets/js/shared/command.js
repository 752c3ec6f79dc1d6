// The torchrun command behind the page, and how batch and steps come about.

import { el, section, setText } from "./dom.js";
import { count, worldSize } from "./format.js";

const SAID_MS = 2000;

/** The section with the command, a Copy button and the equation. */
export function commandPanel(summary) {
  return section(
    "The command",
    "the-command",
    el(
      "p",
      { class: "ddp-caption" },
      "This job as a command, to run by hand in the project's folder. Start does the same, but imports torch once for all ranks, and beforehand where it can.",
    ),
    new CommandLine(summary.command).element,
    equation(summary),
  );
}

/** A command and a button that copies it. `label` says which, for screen readers. */
export class CommandLine {
  constructor(command, label = "command") {
    this.code = el("code", {}, command);
    this.copy = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-small", "aria-label": `Copy: ${label}` },
      "Copy",
    );
    this.copy.addEventListener("click", async () => {
      setText(this.copy, (await copyText(this.code.textContent, this.code)) ? "Copied" : "Press Ctrl+C");
      setTimeout(() => setText(this.copy, "Copy"), SAID_MS);
    });
    this.element = el(
      "div",
      { class: "ddp-command-line" },
      el("pre", { tabindex: 0, "aria-label": label }, this.code),
      this.copy,
    );
  }

  update(command) {
    setText(this.code, command);
  }
}

function equation({
  config,
  num_replicas: copies,
  global_batch: globalBatch,
  steps_per_epoch: stepsPerEpoch,
}) {
  const term = (value, words) => el("span", {}, el("b", {}, count(value)), el("small", {}, words));
  const sign = (text) => el("i", {}, text);
  const ranksEach = worldSize(config) / copies;
  const accumulated = config.gradient_accumulation_steps;
  const copyWords = copies === 1 ? "model copy" : "model copies";
  return el(
    "div",
    { class: "ddp-equation" },
    term(config.batch_size, ranksEach === 1 ? "per rank" : "per copy"),
    sign("×"),
    ranksEach === 1
      ? term(copies, copies === 1 ? "rank" : "ranks")
      : term(copies, `${copyWords}, ${ranksEach} ranks each`),
    accumulated > 1 ? [sign("×"), term(accumulated, "accumulated")] : null,
    sign("="),
    term(globalBatch, "global batch"),
    stepsPerEpoch ? [sign("→"), term(stepsPerEpoch, "steps per epoch")] : null,
  );
}

/** Puts a text on the clipboard; where the browser does not allow it (plain http), selects it. */
async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    window.getSelection()?.selectAllChildren(shown);
    return document.execCommand("copy");
  }
}
