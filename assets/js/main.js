// Puts our views into the places Gradio's pages leave for them, whenever Gradio has rendered those.

import { mountRun } from "./run.js";
import { mountLive, mountRuns } from "./runs.js";

const VIEWS = { "ddp-run": mountRun, "ddp-runs": mountRuns, "ddp-live": mountLive };
const mounted = new Map();

function mountAll() {
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
