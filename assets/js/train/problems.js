// Marks the form fields named in the list of problems, and links the list to them.

import { setAttribute } from "../shared/dom.js";

const PLACE = "problems";

/** Marks fields as invalid or empty; called after each change of the document. */
export function markProblems() {
  const place = document.getElementById(PLACE);
  if (!place) return;
  const lines = new Map(
    [...place.querySelectorAll("[data-field]")].map((line) => [
      `field-${line.getAttribute("data-field")}`,
      line,
    ]),
  );
  for (const field of document.querySelectorAll("[id^=field-]")) mark(field, lines.get(field.id));
  if (!place.dataset.isListening) {
    place.dataset.isListening = "yes";
    place.addEventListener("click", goToField);
  }
}

/** The text is drawn below the field by the style sheet. */
function mark(field, line) {
  const words = line?.querySelector("span")?.textContent ?? null;
  setAttribute(field, "data-problem", words && words[0].toUpperCase() + words.slice(1));
  const isWrong = line !== undefined && line.classList.contains("ddp-wrong");
  setAttribute(field, "data-is-wrong", isWrong ? "yes" : null);
  for (const input of field.querySelectorAll("input, textarea")) {
    setAttribute(input, "aria-invalid", isWrong ? "true" : null);
  }
}

function goToField(event) {
  const name = event.target.closest("[data-go-to]")?.dataset.goTo;
  const field = name && document.getElementById(`field-${name}`);
  if (!field) return;
  const fold = field.closest(".ddp-fold");
  const cover = fold?.querySelector(".label-wrap");
  if (cover && !cover.classList.contains("open")) cover.click();
  // A hidden field cannot take the focus; the fold opens within one frame.
  requestAnimationFrame(() => {
    field.scrollIntoView({ block: "center" });
    field.querySelector("input, textarea")?.focus();
  });
}
