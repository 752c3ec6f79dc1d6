// Two runs on one screen, for a projector: the frame around both.

import { el } from "../../shared/dom.js";
import { comparePage } from "../../shared/net.js";
import { alwaysLarge } from "./projector.js";
import { tool } from "./tools.js";

/** Returns the frame, a place for each run, and a function that ends it. */
export function sideBySide(runIds) {
  const titleBefore = document.title;
  document.title = "Side by side · DDP, live";
  const button = tool("screen", "Full screen", "The whole screen (F; Escape to leave)", null);
  const places = runIds.map(() => el("div", {}));
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
