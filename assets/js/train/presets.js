// Splits the text of preset buttons into a title and a description: Gradio's buttons hold only one text.

import { el } from "../shared/dom.js";
import { showChanges } from "./changes.js";

/** Adds title and description to preset buttons that do not have them yet. */
export function dressPresets() {
  for (const button of document.querySelectorAll("button.ddp-preset")) {
    if (button.firstElementChild || !button.textContent.includes("\n")) continue;
    const [title, words] = button.textContent.trim().split("\n");
    button.replaceChildren(el("strong", {}, title), el("span", {}, words));
    button.addEventListener("click", () => choose(button));
  }
}

/** Marks the preset immediately; the server's response confirms it. */
function choose(button) {
  const line = document.querySelector(".ddp-changes");
  line?.setAttribute("data-preset", button.id.replace("preset-", ""));
  showChanges();
}
