// What the Train page shows in addition to Gradio's form: the live runs, and the tour of the first visit.

import { el, setText, show, icon, makeButton } from "../shared/dom.js";
import { count, LIVE_STATES } from "../shared/format.js";
import { StatePill } from "../shared/widgets.js";
import { address, runPage } from "../shared/net.js";
import { RunsFeed } from "../runs/feed.js";
import { setPreference, preference } from "../shared/browser.js";

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
    this.element = el("li", {}, this.pill, this.name, this.where);
  }

  update(run) {
    this.pill.update(run.state, false, run.detail);
    setText(this.name, run.name);
    setText(this.where, run.num_steps ? `${count(run.step)} of ${count(run.num_steps)}` : count(run.step));
  }
}

// The tour of the first visit: five remarks, each next to the element it explains. Shown once; never blocks
// the page.

const STEPS = [
  [
    ".ddp-presets",
    "Begin with a click",
    "Each of these fills in the whole form. The first one is a good start: small, and quick to learn.",
  ],
  [
    "#main-fields",
    "Several processes train together",
    "Every GPU (or CPU rank) processes its own part of each batch; the equation on the right shows the global batch.",
  ],
  [
    "#start-button",
    "Start runs a real job",
    "It runs the torchrun command below, on this machine. Watch it live; stop, save and resume at any time.",
  ],
  [
    ".ddp-nav",
    "Nothing gets lost",
    "Every run stays under Runs, even when you close this page. Compare runs there.",
  ],
  [
    ".ddp-nav a[href$=learn]",
    "New to this? Learn",
    "Short lessons, each with real runs: predict what happens, start them, and see.",
  ],
];

/**
 * Shows the tour on the first visit and adds a button that repeats it; returns a function that removes its
 * mark. `uncover(element)` scrolls an element out from under a bar.
 */
export function mountTour(place, uncover) {
  let step = 0;
  let marked = null;
  const title = el("strong", {});
  const words = el("p", {});
  const where = el("span", { class: "ddp-hint" });
  const next = makeButton({ class: "ddp-button ddp-button-main ddp-button-small" }, "Next");
  const close = makeButton({ class: "ddp-button ddp-button-small" }, "Close");
  const box = el(
    "aside",
    { class: "ddp-tour", role: "region", "aria-label": "A short tour", hidden: true },
    title,
    words,
    el("div", { class: "ddp-tour-foot" }, where, close, next),
  );

  const mark = (element) => {
    marked?.classList.remove("ddp-tour-target");
    marked = element;
    marked?.classList.add("ddp-tour-target");
  };
  const showStep = () => {
    const [selector, heading, text] = STEPS[step];
    box.hidden = false;
    setText(title, heading);
    setText(words, text);
    setText(where, `${step + 1} of ${STEPS.length}`);
    setText(next, step === STEPS.length - 1 ? "Done" : "Next");
    mark(document.querySelector(selector));
    bringIntoSight(marked, uncover);
  };
  const end = () => {
    box.hidden = true;
    mark(null);
    setPreference("tour", "seen");
  };
  next.addEventListener("click", () => {
    step += 1;
    if (step < STEPS.length) showStep();
    else end();
  });
  close.addEventListener("click", end);
  box.addEventListener("keydown", (event) => event.key === "Escape" && end());

  const again = makeButton({ class: "ddp-tool" }, icon("question"), el("span", {}, "Show the tour"));
  again.addEventListener("click", () => {
    step = 0;
    showStep();
  });
  place.replaceChildren(el("div", { class: "ddp" }, box, again));
  if (preference("tour", "new") === "new") showStep();
  return () => mark(null);
}

/** Scrolls only if necessary; an element larger than the window is shown from its top. */
function bringIntoSight(element, uncover) {
  if (!element) return;
  const isLarge = element.getBoundingClientRect().height > window.innerHeight;
  element.scrollIntoView({ block: isLarge ? "start" : "nearest", inline: "nearest" });
  uncover(element);
}
