// Marks the fields of the form that the list of problems names, and leads to them.

import { setAttribute } from "../shared/dom.js";

const PLACE = "problems";

/** Marks the fields as wrong or not yet filled in; called whenever the document has changed. */
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

/** Its words are drawn below the field by the style sheet. */
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
  // What is folded away cannot take the focus: the fold opens within a frame.
  requestAnimationFrame(() => {
    field.scrollIntoView({ block: "center" });
    field.querySelector("input, textarea")?.focus();
  });
}
