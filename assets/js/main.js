// Puts our views into the places the pages leave for them, whenever those have been rendered.

import { mountNav } from "./nav.js";
import { dressPresets } from "./presets.js";
import { beginTerms, explainTerms } from "./terms.js";

// Each page loads only what it shows.
const VIEWS = {
  "ddp-run": async () => (await import("./run.js")).mountRun,
  "ddp-runs": async () => (await import("./runs.js")).mountRuns,
  "ddp-live": async () => (await import("./live_strip.js")).mountLive,
  "ddp-machine": async () => (await import("./machine.js")).mountMachine,
  "ddp-queue": async () => (await import("./queue.js")).mountQueue,
  "ddp-nav-queue": async () => (await import("./nav_queue.js")).mountNavQueue,
  "ddp-nav-end": async () => mountNav,
  "ddp-tour": async () => (await import("./tour.js")).mountTour,
};
const mounted = new Map();

function mountAll() {
  dressPresets();
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

/** Mounts a view when it has been loaded; returns a function that ends it, also before that. */
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
