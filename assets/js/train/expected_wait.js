// Shows on the Start button how long a run with this configuration would wait in the queue.

import { setAttribute } from "../shared/dom.js";
import { address, fetchJson } from "../shared/net.js";
import { askEvery } from "../shared/polling.js";

const EVERY_MS = 3000;

/** Updates the second line of the button; returns a function that stops it. */
export function mountExpectedWait(button) {
  let query = null;
  let end = () => {};
  const follow = () => {
    const now = queryOfForm();
    if (now === query) return;
    query = now;
    end();
    if (query === null) setAttribute(button, "data-wait", null);
    end = query === null ? () => {} : askEvery(EVERY_MS, () => ask(now), forgetIfUnknown);
  };
  const ask = async (asked) => {
    const { place, words } = await fetchJson(address(`live/queue/expected?${asked}`));
    if (asked === query) setAttribute(button, "data-wait", place === null ? null : `Waits: ${words}`);
  };
  const forgetIfUnknown = (problem) => problem && setAttribute(button, "data-wait", null);
  const column = button.parentElement;
  const observer = new MutationObserver(follow);
  observer.observe(column, { childList: true, subtree: true });
  column.addEventListener("change", follow);
  follow();
  return () => {
    observer.disconnect();
    column.removeEventListener("change", follow);
    end();
  };
}

/** The query for the current form; null while the form is invalid. */
function queryOfForm() {
  const equation = document.querySelector(".ddp-equation[data-kind]");
  if (!equation) return null;
  return new URLSearchParams({
    kind: equation.getAttribute("data-kind") ?? "",
    num_ranks: equation.getAttribute("data-ranks") ?? "",
    may_share: String(document.querySelector("#share-gpus input:checked") !== null),
  }).toString();
}
