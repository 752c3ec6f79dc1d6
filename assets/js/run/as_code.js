// "As code": the run as one script, read when the section is opened.

import { CodePanel } from "../code/panel.js";
import { el, section } from "../shared/dom.js";
import { fetchJson, runAddress } from "../shared/net.js";

/** Returns the section of a run. */
export function asCode(runId) {
  const panel = new CodePanel();
  const fold = el("details", { class: "ddp-code-fold" }, el("summary", {}, "Show train.py"), panel.element);
  fold.addEventListener("toggle", async () => {
    if (!fold.open || (panel.shown && !panel.shown.reason)) return;
    try {
      const addresses = ["train.py", "train.ipynb"].map((name) => runAddress(runId, `code/${name}`));
      panel.update(await fetchJson(runAddress(runId, "code")), addresses);
    } catch (error) {
      panel.fail(error.message);
    }
  });
  return section(
    "As code",
    "as-code",
    el(
      "p",
      { class: "ddp-caption" },
      "This run as one file, as an engineer would write it: data, model, loop and DDP from top to bottom, with torch and numpy only. Its head says what it leaves out, and how closely its losses agree.",
    ),
    fold,
  );
}
