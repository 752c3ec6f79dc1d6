// Mounts our views into the containers of the Gradio pages as soon as they are rendered.

import { mountNav, mountNavQueue } from "./auth/person.js";
import { beginInstalls } from "./machine/install.js";
import { beginPrinting } from "./shared/browser.js";
import { beginTerms, explainTerms } from "./shared/terms.js";
import {
  listenForDrops,
  beginStart,
  beginSuggestions,
  beginTypeAhead,
  formatPresets,
  followFolds,
  markProblems,
  mountExpectedWait,
  showChanges,
  showDatasetGroups,
} from "./train/form.js";

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
  "ddp-tour": async () => (await import("./train/page.js")).mountTour,
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
    const element = document.getElementById(id);
    const mountedPart = mounted.get(id);
    if (mountedPart?.place === element) continue;
    mountedPart?.end();
    mounted.delete(id);
    if (element) mounted.set(id, { place: element, end: mountLater(load, element) });
  }
}

/**
 * Mounts a view once its module is loaded; returns a function that unmounts it, also before it has loaded.
 */
function mountLater(load, element) {
  let isOver = false;
  let end = () => {};
  load().then((mount) => {
    if (!isOver) end = mount(element);
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
beginTypeAhead();
listenForDrops();
beginStart();
