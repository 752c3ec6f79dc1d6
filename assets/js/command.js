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

function equation({ config, num_replicas: copies, global_batch: globalBatch, steps_per_epoch: stepsPerEpoch }) {
  const term = (value, words) => el("span", {}, el("b", {}, count(value)), el("small", {}, words));
  const sign = (text) => el("i", {}, text);
  const ranksEach = config.nproc_per_node / copies;
  const accumulated = config.gradient_accumulation_steps;
  const copyWords = copies === 1 ? "model copy" : "model copies";
  return el(
    "div",
    { class: "ddp-equation" },
    term(config.batch_size, ranksEach === 1 ? "per rank" : "per copy"),
    sign("×"),
    ranksEach === 1 ? term(copies, copies === 1 ? "rank" : "ranks") : term(copies, `${copyWords}, ${ranksEach} ranks each`),
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
    window.getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}
