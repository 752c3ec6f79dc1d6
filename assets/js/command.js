// The torchrun command behind the page, and how batch and steps come about.

import { el, section, setText } from "./dom.js";
import { count } from "./format.js";

const SAID_MS = 2000;

/** The section with the command, a Copy button and the equation. */
export function commandPanel(summary) {
  const code = el("code", {}, summary.command);
  const copy = el("button", { type: "button", class: "ddp-button ddp-button-small" }, "Copy");
  copy.addEventListener("click", async () => {
    setText(copy, (await copyText(summary.command, code)) ? "Copied" : "Press Ctrl+C");
    setTimeout(() => setText(copy, "Copy"), SAID_MS);
  });
  return section(
    "The command",
    "the-command",
    el("p", { class: "ddp-caption" }, "What runs behind this page. It works by hand as well, in the project's folder."),
    el("div", { class: "ddp-command-line" }, el("pre", { tabindex: 0 }, code), copy),
    equation(summary),
  );
}

function equation({ config, global_batch: globalBatch, steps_per_epoch: stepsPerEpoch }) {
  const term = (value, words) => el("span", {}, el("b", {}, count(value)), el("small", {}, words));
  const sign = (text) => el("i", {}, text);
  const numRanks = config.nproc_per_node;
  return el(
    "div",
    { class: "ddp-equation" },
    term(config.batch_size, "per rank"),
    sign("×"),
    term(numRanks, numRanks === 1 ? "rank" : "ranks"),
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
    window.getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}
