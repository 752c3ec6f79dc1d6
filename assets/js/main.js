// Mounts our views into the containers of the Gradio pages as soon as they are rendered.

import { mountNav, mountNavQueue } from "./auth/person.js";
import { beginInstalls } from "./machine/install.js";
import { beginPrinting } from "./shared/browser.js";
import { beginTerms, explainTerms } from "./shared/terms.js";
import {
  listenForDrops,
  beginStart,
  beginSuggestions,
  formatPresets,
  followFolds,
  markProblems,
  mountExpectedWait,
  showChanges,
  showDatasetGroups,
} from "./train/form.js";

// Keeps the focused element out from under sticky and fixed bars (WCAG 2.4.11).

const GAP = 12;
const MOST_STEPS = 10;
const STAYS = new Set(["fixed", "sticky"]);
// Popups close with the next key or have a close button, and are placed next to their anchor.
const POPUPS = '.options, [role="listbox"], [role="tooltip"], .ddp-menu, .ddp-toasts, .ddp-drop, dialog';

/** Starts to scroll each element that gets the keyboard focus out from under a bar. */
function beginUncovering() {
  document.addEventListener("focusin", ({ target }) => {
    if (!(target instanceof HTMLElement) || !target.matches(":focus-visible")) return;
    // Runs after the browser's own scrolling.
    requestAnimationFrame(() => uncover(target));
  });
}

/**
 * Scrolls an element out from under a bar; shows the start of an element that does not fit.
 *
 * An element in a sticky column does not move until the column ends, so one step may not be enough. The
 * number of steps is limited, because a tall element may lie below two bars at once.
 * @param {Element} element
 */
function uncover(element) {
  for (let step = 0; step < MOST_STEPS; step += 1) {
    const box = element.getBoundingClientRect();
    const bar = barOver(element, box)?.getBoundingClientRect();
    if (!bar) return;
    const isBelow = bar.top + bar.bottom > window.innerHeight;
    const down = Math.min(box.bottom - bar.top + GAP, box.top - GAP);
    window.scrollBy({ top: isBelow ? down : box.top - bar.bottom - GAP, behavior: "instant" });
  }
}

/**
 * Returns the bar that covers a part of an element.
 * @param {Element} element
 * @param {DOMRect} box
 */
function barOver(element, box) {
  const [low, high] = [Math.max(box.top, 0), Math.min(box.bottom, window.innerHeight)];
  const rows = [low + 1, (low + high) / 2, high - 1];
  const columns = [box.left + 1, (box.left + box.right) / 2, box.right - 1];
  const places = rows.flatMap((y) => columns.map((x) => document.elementFromPoint(x, y)));
  return places.map((above) => barOf(above, element)).find((bar) => bar !== null);
}

/**
 * Returns the bar that contains an element, unless one of the two contains the other.
 * @param {Element | null} element
 * @param {Element} below
 */
function barOf(element, below) {
  let above = element;
  while (above && !above.contains(below) && !below.contains(above)) {
    if (STAYS.has(getComputedStyle(above).position)) return above.matches(POPUPS) ? null : above;
    above = above.parentElement;
  }
  return null;
}

// Loaded lazily: each page loads only the modules it shows.
const VIEWS = {
  "ddp-script": async () => (await import("./script/page.js")).mountScript,
  "ddp-run": async () => (await import("./run/page.js")).mountRun,
  "ddp-runs": async () => (await import("./runs/page.js")).mountRuns,
  "ddp-live": async () => (await import("./train/page.js")).mountLive,
  "ddp-form-code": async () => (await import("./script/as_code.js")).mountFormCode,
  "start-button": async () => mountExpectedWait,
  "ddp-machine": async () => (await import("./machine/page.js")).mountMachine,
  "ddp-learn": async () => (await import("./learn/page.js")).mountLearn,
  "ddp-poll": async () => (await import("./learn/polls/page.js")).mountPoll,
  "ddp-queue": async () => (await import("./queue/page.js")).mountQueue,
  "ddp-nav-queue": async () => mountNavQueue,
  "ddp-nav-end": async () => mountNav,
  "ddp-tour": async () => {
    const { mountTour } = await import("./train/page.js");
    return (place) => mountTour(place, uncover);
  },
};
const mounted = new Map();

function mountAll() {
  formatPresets();
  markProblems();
  showChanges();
  showDatasetGroups();
  followFolds();
  explainTerms();
  for (const [id, load] of Object.entries(VIEWS)) {
    const place = document.getElementById(id);
    const held = mounted.get(id);
    if (held?.place === place) continue;
    held?.end();
    mounted.delete(id);
    if (place) mounted.set(id, { place, end: mountLater(load, place) });
  }
}

/**
 * Mounts a view once its module is loaded; returns a function that unmounts it, also before it has loaded.
 */
function mountLater(load, place) {
  let isOver = false;
  let end = () => {};
  load().then((mount) => {
    if (!isOver) end = mount(place);
  });
  return () => {
    isOver = true;
    end();
  };
}

new MutationObserver(mountAll).observe(document.documentElement, { childList: true, subtree: true });
mountAll();
beginTerms();
beginPrinting();
beginInstalls();
beginSuggestions();
listenForDrops();
beginStart();
beginUncovering();
