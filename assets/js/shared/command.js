// The torchrun command of a run, and the equation that relates batch size, ranks and steps.

import { el, makeButton, section, setText, show } from "./dom.js";
import { count, LIVE_STATES, worldSize } from "./format.js";

const COPIED_SHOWN_MS = 2000;

/** The section with the commands, each with a Copy button, and the equation. */
export class CommandPanel {
  constructor(summary) {
    this.summary = summary;
    this.resume = new CommandLine("", "command to resume");
    this.resumePart = el(
      "div",
      { hidden: true },
      el("p", { class: "ddp-caption" }, "Resume it from its newest checkpoint:"),
      this.resume.element,
    );
    this.element = section(
      "The command",
      "the-command",
      el(
        "p",
        { class: "ddp-caption" },
        "This job as a command for any terminal of this computer: it trains a new run with the same settings. Start does the same, but imports torch once for all ranks, in advance if possible.",
      ),
      new CommandLine(summary.command).element,
      this.resumePart,
      summary.script ? scriptOf(summary) : null,
      summary.config.script ? null : equation(summary),
    );
  }

  /** A run that ended before its last step can also be resumed from a terminal. */
  update(checkpoints, head) {
    this.checkpoints = checkpoints ?? this.checkpoints;
    const newest = this.checkpoints?.[0]?.step;
    // A script is resumed on the page only.
    const isOurs = !this.summary.config.script;
    const isResumable =
      isOurs && !LIVE_STATES.has(head.state) && newest !== undefined && !(newest >= head.num_steps);
    show(this.resumePart, isResumable);
    if (!isResumable) return;
    const { text, placeholder } = this.summary.resume_command;
    this.resume.update(text.replace(placeholder, String(newest)));
  }
}

/** The submitted script in a collapsed section. */
function scriptOf({ script, run_dir: runDir }) {
  return el(
    "details",
    { class: "ddp-elsewhere" },
    el("summary", {}, "This job as a script"),
    el(
      "p",
      { class: "ddp-caption" },
      `The submitted script: ${runDir}/job.sh. Submitting it with sbatch does the same.`,
    ),
    new CommandLine(script, "job script").element,
  );
}

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
