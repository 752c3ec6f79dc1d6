// The way to the queue, shown in the navigation when people log in, or when somebody waits.

import { el, setText, show } from "../shared/dom.js";
import { address, fetchJson } from "../shared/net.js";

/** Looks once whether there is anything to see; returns a function that ends it. */
export function mountNavQueue(place) {
  let isOver = false;
  const isHere = place.dataset.current === "true";
  const link = el("a", { href: address("queue"), "aria-current": isHere ? "page" : null }, "Queue");
  show(link, isHere);
  place.replaceChildren(link);
  const look = async () => {
    const brief = await fetchJson(address("live/queue/brief"));
    if (isOver) return;
    show(link, isHere || brief.is_shown);
    setText(link, brief.num_waiting > 0 ? `Queue (${brief.num_waiting})` : "Queue");
  };
  // Without an answer the rest of the page says that the server is away.
  look().catch(() => {});
  return () => {
    isOver = true;
  };
}
