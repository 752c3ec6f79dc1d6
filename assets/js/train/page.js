// What the Train page shows in addition to Gradio's form: the live runs, and the tour of the first visit.

import { el, setText, show, icon, makeButton } from "../shared/dom.js";
import { count, LIVE_STATES, stepOf } from "../shared/format.js";
import { StatePill, textButton, updateRows } from "../shared/widgets.js";
import { address, runPage } from "../shared/net.js";
import { RunsFeed } from "../runs/feed.js";
import { setPreference, preference } from "../shared/browser.js";

/** Fills an element with links to the live runs; hidden without live runs. */
export function mountLive(root) {
  const links = new WeakMap();
  const list = el("ul", {});
  const aria = { "aria-label": "Running now", hidden: true };
  const strip = el("nav", { class: "ddp ddp-live-strip", ...aria }, el("strong", {}, "Running now"), list);
  root.replaceChildren(strip);
  const newLink = ({ run_id: runId }) => {
    const link = runId === QUEUED ? new QueueLink() : new LiveLink(runId);
    links.set(link.element, link);
    return link.element;
  };
  const feed = new RunsFeed({
    onlyLive: true,
    onRows: (rows) => {
      const all = [...rows.values()].filter((run) => LIVE_STATES.has(run.state));
      const shown = all.filter((run) => run.state !== "queued");
      const num = all.length - shown.length;
      if (num > 0) shown.push({ run_id: QUEUED, num });
      show(strip, shown.length > 0);
      const fill = (row, run) => links.get(row).update(run);
      updateRows(list, shown, (run) => run.run_id, newLink, fill);
    },
  });
  return () => feed.close();
}

const QUEUED = "queued runs";

/** One link for all queued runs: a class may have hundreds of them. */
class QueueLink {
  constructor() {
    this.link = el("a", { href: address("queue") });
    this.element = el("li", {}, this.link);
  }

  update({ num }) {
    setText(this.link, num === 1 ? "1 is queued" : `${count(num)} are queued`);
  }
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
    setText(this.where, stepOf(run));
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

/** Shows the tour on the first visit and adds a button that repeats it; returns a function that removes its mark. */
export function mountTour(place) {
  let step = 0;
  let marked = null;
  const title = el("strong", {});
  const body = el("p", {});
  const where = el("span", { class: "ddp-hint" });
  const mark = (element) => {
    marked?.classList.remove("ddp-tour-target");
    marked = element;
    marked?.classList.add("ddp-tour-target");
  };
  const showStep = () => {
    const [selector, heading, text] = STEPS[step];
    box.hidden = false;
    setText(title, heading);
    setText(body, text);
    setText(where, `${step + 1} of ${STEPS.length}`);
    setText(next, step === STEPS.length - 1 ? "Done" : "Next");
    mark(document.querySelector(selector));
    bringIntoSight(marked);
  };
  const end = () => {
    box.hidden = true;
    mark(null);
    setPreference("tour", "seen");
  };
  const go = (number) => {
    step = number;
    if (step < STEPS.length) showStep();
    else end();
  };
  const next = textButton("Next", () => go(step + 1), "main small");
  const foot = el("div", { class: "ddp-tour-foot" }, where, textButton("Close", end, "small"), next);
  const aria = { role: "region", "aria-label": "A short tour", hidden: true };
  const onkeydown = (event) => event.key === "Escape" && end();
  const box = el("aside", { class: "ddp-tour", ...aria, onkeydown }, title, body, foot);
  const label = el("span", {}, "Show the tour");
  const again = makeButton({ class: "ddp-tool", onclick: () => go(0) }, icon("question"), label);
  place.replaceChildren(el("div", { class: "ddp" }, box, again));
  // A form that another page has filled in is not the place to begin with a preset.
  if (preference("tour", "new") === "new" && !location.search) showStep();
  return () => mark(null);
}

/** Scrolls only if necessary; an element larger than the window is shown from its top. */
function bringIntoSight(element) {
  if (!element) return;
  const isLarge = element.getBoundingClientRect().height > window.innerHeight;
  element.scrollIntoView({ block: isLarge ? "start" : "nearest", inline: "nearest" });
}
