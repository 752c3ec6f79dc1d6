// The options of Resume; on a phone a button shows them.

import { el, freeId, setAttribute } from "../../shared/dom.js";

/** Returns the button, which is visible only on phones, and the box of these controls. */
export function resumeOptions(...controls) {
  const id = freeId("ddp-resume-options");
  const options = el("div", { class: "ddp-resume-options", id }, controls);
  const unfold = el(
    "button",
    {
      type: "button",
      class: "ddp-more-button ddp-unfold",
      "aria-label": "What Resume starts from",
      "aria-expanded": "false",
      "aria-controls": id,
    },
    "⋯",
  );
  const set = (isOpen) => {
    setAttribute(unfold, "aria-expanded", String(isOpen));
    options.classList.toggle("ddp-unfolded", isOpen);
  };
  unfold.addEventListener("click", () => set(unfold.getAttribute("aria-expanded") !== "true"));
  options.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    set(false);
    unfold.focus();
  });
  return [unfold, options];
}
