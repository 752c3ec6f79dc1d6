// The strip of live runs on the Train page.

import { el, setText, show } from "../shared/dom.js";
import { count, LIVE_STATES } from "../shared/format.js";
import { StatePill } from "../shared/state_pill.js";
import { address, runPage } from "../shared/net.js";
import { RunsFeed } from "../runs/feed.js";

/** Fills an element with links to the live runs; hidden without live runs. */
export function mountLive(root) {
  const links = new Map();
  const list = el("ul", {});
  // One link for all queued runs: a class may have hundreds of them.
  const waiting = el("a", { href: address("queue") });
  const inLine = el("li", { hidden: true }, waiting);
  list.append(inLine);
  const strip = el(
    "nav",
    { class: "ddp ddp-live-strip", "aria-label": "Running now", hidden: true },
    el("strong", {}, "Running now"),
    list,
  );
  root.replaceChildren(strip);
  const feed = new RunsFeed({
    onlyLive: true,
    onRows: (rows) => {
      const all = [...rows.values()].filter((run) => LIVE_STATES.has(run.state));
      const live = all.filter((run) => run.state !== "queued");
      const numWaiting = all.length - live.length;
      show(strip, all.length > 0);
      show(inLine, numWaiting > 0);
      setText(waiting, numWaiting === 1 ? "1 is queued" : `${count(numWaiting)} are queued`);
      const names = new Set(live.map((run) => run.run_id));
      for (const [runId, link] of links) {
        if (names.has(runId)) continue;
        link.element.remove();
        links.delete(runId);
      }
      for (const run of live) {
        if (!links.has(run.run_id)) {
          const link = new LiveLink(run.run_id);
          links.set(run.run_id, link);
          inLine.before(link.element);
        }
        links.get(run.run_id).update(run);
      }
    },
  });
  return () => feed.close();
}

class LiveLink {
  constructor(runId) {
    this.pill = new StatePill();
    this.name = el("a", { href: runPage(runId) });
    this.where = el("span", {});
    this.element = el("li", {}, this.pill.element, this.name, this.where);
  }

  update(run) {
    this.pill.update(run.state, false, run.detail);
    setText(this.name, run.name);
    setText(this.where, run.num_steps ? `${count(run.step)} of ${count(run.num_steps)}` : count(run.step));
  }
}
