// Puts our views into the places Gradio's pages leave for them, whenever Gradio has rendered those.

import { mountMachine } from "./machine.js";
import { mountNav } from "./nav.js";
import { mountRun } from "./run.js";
import { mountLive, mountRuns } from "./runs.js";
import { dressPresets } from "./presets.js";
import { mountTour } from "./tour.js";

const VIEWS = {
  "ddp-run": mountRun,
  "ddp-runs": mountRuns,
  "ddp-live": mountLive,
  "ddp-machine": mountMachine,
  "ddp-nav-end": mountNav,
  "ddp-tour": mountTour,
};
const mounted = new Map();

function mountAll() {
  dressPresets();
  for (const [id, mount] of Object.entries(VIEWS)) {
    const place = document.getElementById(id);
    const held = mounted.get(id);
    if (held?.place === place) continue;
    held?.end();
    mounted.delete(id);
    if (place) mounted.set(id, { place, end: mount(place) });
  }
}

new MutationObserver(mountAll).observe(document.documentElement, { childList: true, subtree: true });
mountAll();
