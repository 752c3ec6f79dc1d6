// Mounts our views into the containers of the Gradio pages as soon as they are rendered.

import { mountNav } from "./auth/nav.js";
import { beginPrinting } from "./shared/print.js";
import { beginTerms, explainTerms } from "./shared/terms.js";
import { dressPresets } from "./train/presets.js";
import { markProblems } from "./train/problems.js";
import { showChanges } from "./train/changes.js";
import { beginInstalls } from "./machine/install.js";
import { showDatasetGroups } from "./train/dataset_groups.js";
import { followFolds } from "./train/folds.js";
import { beginDrops } from "./train/drop.js";
import { beginStart } from "./train/start.js";
import { beginUncovering, uncover } from "./uncovered.js";
import { beginSuggestions } from "./train/suggestions.js";

// Loaded lazily: each page loads only the modules it shows.
const VIEWS = {
  "ddp-script": async () => (await import("./script/page.js")).mountScript,
  "ddp-run": async () => (await import("./run/page.js")).mountRun,
  "ddp-runs": async () => (await import("./runs/page.js")).mountRuns,
  "ddp-live": async () => (await import("./train/live_strip.js")).mountLive,
  "ddp-form-code": async () => (await import("./train/as_code.js")).mountFormCode,
  "start-button": async () => (await import("./train/expected_wait.js")).mountExpectedWait,
  "ddp-machine": async () => (await import("./machine/page.js")).mountMachine,
  "ddp-learn": async () => (await import("./learn/page.js")).mountLearn,
  "ddp-poll": async () => (await import("./learn/polls/page.js")).mountPoll,
  "ddp-queue": async () => (await import("./queue/page.js")).mountQueue,
  "ddp-nav-queue": async () => (await import("./queue/nav.js")).mountNavQueue,
  "ddp-nav-end": async () => mountNav,
  "ddp-tour": async () => {
    const { mountTour } = await import("./train/tour.js");
    return (place) => mountTour(place, uncover);
  },
};
const mounted = new Map();

function mountAll() {
  dressPresets();
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
beginDrops();
beginStart();
beginUncovering();
