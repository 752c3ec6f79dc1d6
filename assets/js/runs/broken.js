// The badge of a run that is broken on purpose: a mistake is built into it, for teaching.

import { el, icon } from "../shared/dom.js";

export const BROKEN = "broken on purpose";

/**
 * The badge, or null for a run as it should be; where there is little room it names the mistake under the pointer only.
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
