// Projector mode (large curves, no buttons, full screen), two runs side by side, and the read-only view for
// phones.

import { inform } from "../../shared/dialog.js";
import { el, setAttribute } from "../../shared/dom.js";
import { comparePage } from "../../shared/net.js";
import { tool } from "./tools.js";

// Projector mode (large curves, no buttons, full screen) and the read-only view for phones.

const QUERY = "projector";
const LARGE = "ddp-projector";
const page = document.documentElement;

/**
 * Follows the URL, a button and the key F; calls `onChange()` after a change. Returns a function that ends
 * it.
 */
export function projector(button, onChange) {
  const isOn = () => page.classList.contains(LARGE);
  const set = (isWanted) => {
    page.classList.toggle(LARGE, isWanted);
    setAttribute(button, "aria-pressed", String(isWanted));
    const url = new URL(window.location.href);
    if (isWanted) url.searchParams.set(QUERY, "1");
    else url.searchParams.delete(QUERY);
    window.history.replaceState(null, "", url);
    onChange();
  };
  let isSettling = false;
  // Requests full screen until it matches the last click, one request at a time: clicks can be faster than
  // the browser.
  const settle = async () => {
    if (isSettling) return;
    isSettling = true;
    try {
      while (isOn() !== isFull()) {
        if (!isOn()) await document.exitFullscreen();
        else if (!(await fillScreen())) break;
      }
    } finally {
      isSettling = false;
    }
  };
  const turn = (isWanted) => {
    if (isOn() === isWanted) return;
    set(isWanted);
    settle();
  };
  const toggle = () => turn(!isOn());
  const leave = () => turn(false);
  // Escape ends the browser's full screen without a key event.
  const onFullScreen = () => !isSettling && !isFull() && leave();
  button.addEventListener("click", toggle);
  document.addEventListener("fullscreenchange", onFullScreen);
  const endKeys = onKeys({ f: toggle, Escape: leave });
  const query = new URLSearchParams(window.location.search);
  if (query.has(QUERY)) set(true);
  page.classList.toggle("ddp-watch-only", query.has("watch"));
  return () => {
    endKeys();
    document.removeEventListener("fullscreenchange", onFullScreen);
    page.classList.remove(LARGE, "ddp-watch-only");
  };
}

/** Keeps the page large; a button and the key F toggle full screen. Returns a function that reverts this. */
export function alwaysLarge(button) {
  const toggle = () => (isFull() ? document.exitFullscreen() : fillScreen());
  page.classList.add(LARGE);
  button.addEventListener("click", toggle);
  const endKeys = onKeys({ f: toggle });
  return () => {
    endKeys();
    page.classList.remove(LARGE);
  };
}

function isFull() {
  return document.fullscreenElement !== null;
}

/** Returns true if the browser allowed full screen. */
async function fillScreen() {
  try {
    await page.requestFullscreen();
    return true;
  } catch {
    inform("This browser does not allow a page to use the full screen. Try its own key, often F11.");
    return false;
  }
}

/** Calls the action of a key, except in input fields; returns a function that removes the listener. */
function onKeys(acts) {
  const onKey = (event) => {
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    acts[event.key]?.();
  };
  document.addEventListener("keydown", onKey);
  return () => document.removeEventListener("keydown", onKey);
}

// Two runs side by side, for a projector: the frame around both.

/** Returns the frame, a container for each run, and a function that leaves the view. */
export function sideBySide(runIds) {
  const titleBefore = document.title;
  document.title = "Side by side · Rankscope";
  const button = tool("screen", "Full screen", "The whole screen (F; Escape to leave)", null);
  const places = runIds.map((runId, index) =>
    el("div", { id: `ddp-side-${index}`, role: "group", "aria-label": `Run ${runId}` }),
  );
  const element = el(
    "div",
    { class: "ddp ddp-side-by-side" },
    el("div", { class: "ddp-side-by-side-tools" }, button, el("a", { href: comparePage(runIds) }, "Compare")),
    places,
  );
  const endLarge = alwaysLarge(button);
  const end = () => {
    endLarge();
    document.title = titleBefore;
  };
  return { element, places, end };
}

/** Adds the run's name to the accessible names of its parts, because both runs have the same parts. */
export function nameParts(place) {
  for (const part of place.querySelectorAll("section[aria-labelledby]")) {
    part.setAttribute("aria-labelledby", `${part.getAttribute("aria-labelledby")} ${place.id}`);
  }
  for (const part of place.querySelectorAll(":is(section, [role=region])[aria-label]")) {
    setAttribute(part, "aria-label", `${part.getAttribute("aria-label")}, ${place.ariaLabel}`);
  }
}
