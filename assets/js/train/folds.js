// Folds say whether they are open, to a screen reader too.

import { setAttribute } from "../shared/dom.js";

/** Follows every fold; called whenever the document has changed. */
export function followFolds() {
  for (const cover of document.querySelectorAll(".ddp-fold > .label-wrap")) {
    if (cover.hasAttribute("aria-expanded")) continue;
    const tell = () => setAttribute(cover, "aria-expanded", String(cover.classList.contains("open")));
    new MutationObserver(tell).observe(cover, { attributeFilter: ["class"] });
    tell();
  }
}
