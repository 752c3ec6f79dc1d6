// The title of the comparison and the bin, with a link back to the list.

import { el } from "../shared/dom.js";
import { address } from "../shared/net.js";

/** `onBack(event)` returns to the list; `others` are placed before the link. */
export function titleWithWayBack(title, onBack, ...others) {
  return el(
    "div",
    { class: "ddp-list-title" },
    el("h1", {}, title),
    others,
    el("a", { href: address("runs"), onclick: onBack }, "All runs"),
  );
}
