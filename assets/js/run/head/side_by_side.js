// Two runs side by side, for a projector: the frame around both.

import { el, setAttribute } from "../../shared/dom.js";
import { comparePage } from "../../shared/net.js";
import { alwaysLarge } from "./projector.js";
import { tool } from "./tools.js";

/** Returns the frame, a container for each run, and a function that leaves the view. */
export function sideBySide(runIds) {
  const titleBefore = document.title;
  document.title = "Side by side · Rankscope";
  const button = tool("screen", "Full screen", "The whole screen (F; Escape to leave)", null);
  const places = runIds.map((runId, index) =>
    el("div", { id: `ddp-side-${index}`, role: "group", "aria-label": `Run ${runId}` }),
  );
  const element = el(
    "div",
    { class: "ddp ddp-side-by-side" },
    el("div", { class: "ddp-side-by-side-tools" }, button, el("a", { href: comparePage(runIds) }, "Compare")),
    places,
  );
  const endLarge = alwaysLarge(button);
  const end = () => {
    endLarge();
    document.title = titleBefore;
  };
  return { element, places, end };
}

/** Adds the run's name to the accessible names of its parts, because both runs have the same parts. */
export function nameParts(place) {
  for (const part of place.querySelectorAll("section[aria-labelledby]")) {
    part.setAttribute("aria-labelledby", `${part.getAttribute("aria-labelledby")} ${place.id}`);
  }
  for (const part of place.querySelectorAll(":is(section, [role=region])[aria-label]")) {
    setAttribute(part, "aria-label", `${part.getAttribute("aria-label")}, ${place.ariaLabel}`);
  }
}
