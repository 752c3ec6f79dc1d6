// The way to the queue, shown in the navigation when people log in, or when somebody waits.

import { el, setText, show } from "../shared/dom.js";
import { address, fetchJson } from "../shared/net.js";
import { askEvery } from "../shared/polling.js";

const EVERY_MS = 3000;

/** Keeps the number of queued runs true while the page is visible; returns a function that ends it. */
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
  // Without an answer the rest of the page says that the server is away.
  return askEvery(EVERY_MS, ask, () => {});
}
