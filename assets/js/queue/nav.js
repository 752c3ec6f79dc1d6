// The link to the queue in the navigation; shown if the page has a login or if runs are waiting.

import { el, setText, show } from "../shared/dom.js";
import { address, fetchJson } from "../shared/net.js";
import { askEvery } from "../shared/polling.js";

const EVERY_MS = 3000;

/** Updates the number of queued runs while the page is visible; returns a function that stops it. */
export function mountNavQueue(place) {
  const isHere = place.dataset.current === "true";
  const link = el("a", { href: address("queue"), "aria-current": isHere ? "page" : null }, "Queue");
  show(link, isHere);
  place.replaceChildren(link);
  const ask = async () => {
    const brief = await fetchJson(address("live/queue/brief"));
    show(link, isHere || brief.is_shown);
    setText(link, brief.num_waiting > 0 ? `Queue (${brief.num_waiting})` : "Queue");
  };
  // Errors are ignored: the rest of the page reports that the server does not respond.
  return askEvery(EVERY_MS, ask, () => {});
}
