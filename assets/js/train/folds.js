// Reports the state of folds to screen readers, which Gradio does not do.

import { setAttribute } from "../shared/dom.js";

/** Sets aria-expanded on new folds; called after each change of the document. */
export function followFolds() {
  for (const cover of document.querySelectorAll(".ddp-fold > .label-wrap")) {
    if (cover.hasAttribute("aria-expanded")) continue;
    const tell = () => setAttribute(cover, "aria-expanded", String(cover.classList.contains("open")));
    new MutationObserver(tell).observe(cover, { attributeFilter: ["class"] });
    tell();
  }
}
