// The badge of a run with an intentional mistake, for teaching.

import { el, icon } from "../shared/dom.js";

export const BROKEN = "broken on purpose";

/**
 * The badge, or null for a normal run. The short form names the mistake only in its tooltip.
 * @param {{ name: string, label: string, description: string } | null | undefined} mistake
 */
export function brokenBadge(mistake, isShort = false) {
  if (!mistake) return null;
  const words = `${BROKEN}: ${mistake.label}`;
  return el(
    "span",
    { class: "ddp-broken", title: `${words}. ${mistake.description}`, "data-mistake": mistake.name },
    icon("warning"),
    el("span", {}, isShort ? BROKEN : words),
  );
}
