// Gradio's buttons hold one text: here its first line becomes a title.

import { el } from "../shared/dom.js";
import { showChanges } from "./changes.js";

/** Gives each button of a preset that has none yet a title and words. */
export function dressPresets() {
  for (const button of document.querySelectorAll("button.ddp-preset")) {
    if (button.firstElementChild || !button.textContent.includes("\n")) continue;
    const [title, words] = button.textContent.trim().split("\n");
    button.replaceChildren(el("strong", {}, title), el("span", {}, words));
    button.addEventListener("click", () => choose(button));
  }
}

/** Shows the click at once; the server's answer says which preset is chosen. */
function choose(button) {
  const line = document.querySelector(".ddp-changes");
  line?.setAttribute("data-preset", button.id.replace("preset-", ""));
  showChanges();
}
