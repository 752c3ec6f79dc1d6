// Shows the number of changes on presets and folds, and stores the form's values for a reload.

import { el, setAttribute, setText } from "../shared/dom.js";

/** Marks the chosen preset and shows on each fold how many fields differ from their defaults. */
export function showChanges() {
  const line = document.querySelector(".ddp-changes");
  if (!line) return;
  // Read by Page.KEPT in ddp_gui/train after a reload.
  try {
    sessionStorage.setItem(`ddp-form${location.search}`, line.getAttribute("data-values") ?? "");
  } catch {
    // Storage is optional.
  }
  for (const button of document.querySelectorAll("button.ddp-preset")) {
    setAttribute(button, "aria-pressed", String(button.id === `preset-${line.getAttribute("data-preset")}`));
  }
  const topics = JSON.parse(line.getAttribute("data-topics") ?? "{}");
  for (const fold of document.querySelectorAll(".ddp-fold")) {
    const cover = fold.querySelector(".label-wrap");
    const sign = cover?.querySelector(".icon");
    if (!cover || !sign) continue;
    const note = cover.querySelector(".ddp-fold-count") ?? el("small", { class: "ddp-fold-count" });
    if (!note.isConnected) sign.before(note);
    const num = topics[fold.id.replace("fold-", "")] ?? 0;
    setText(note, num ? `· ${num} changed` : "");
  }
}
