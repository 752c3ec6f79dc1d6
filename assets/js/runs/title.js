// The title of a page beside the list, with the way back to it.

import { el } from "../shared/dom.js";
import { address } from "../shared/net.js";

/** `onBack(event)` goes to the list; `others` stand before the way back. */
export function titleWithWayBack(title, onBack, ...others) {
  return el(
    "div",
    { class: "ddp-list-title" },
    el("h1", {}, title),
    others,
    el("a", { href: address("runs"), onclick: onBack }, "All runs"),
  );
}
