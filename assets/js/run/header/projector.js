// Views of a run's page and how they are shared: projector, side by side, notification, read-only link, report.

import { reportAddress, comparePage } from "../../shared/net.js";
import { el, icon, makeButton, setAttribute } from "../../shared/dom.js";
import { setPreference, preference } from "../../shared/browser.js";
import { showError, showMessage } from "../../shared/dialog.js";

const COPIES_LINK = "Copies a link to this page without its buttons, for phones and guests";
const LARGE_CURVES = "Large curves, no buttons, the whole screen (F; Escape to leave)";

/** Returns the row of buttons, and the projector button, which the page handles. */
export function headerTools(runId) {
  const projectorButton = tool("screen", "Projector", LARGE_CURVES, null);
  projectorButton.setAttribute("aria-pressed", "false");
  const title = "One page with curves, configuration, results and events: opens offline, and prints";
  const report = { href: reportAddress([runId]), title };
  const element = el(
    "div",
    { class: "ddp-tools", role: "group", "aria-label": "View and sharing" },
    projectorButton,
    notifyButton(),
    tool("link", "Copy viewer link", COPIES_LINK, copyWatchLink),
    el("a", { class: "ddp-tool", download: "", ...report }, icon("save"), el("span", {}, "Report")),
  );
  return { element, projectorButton };
}

export function tool(shape, text, title, onclick) {
  return makeButton({ class: "ddp-tool", title, onclick }, icon(shape), el("span", {}, text));
}

function notifyButton() {
  const on = "While the page of a run is open, this browser notifies you when the run ends.";
  const button = tool("bell", "Notify me", "A browser notification when the run ends", async () => {
    const isOn = button.getAttribute("aria-pressed") === "true";
    if (!isOn && !(await mayNotify())) return;
    setPreference("notify", !isOn);
    setAttribute(button, "aria-pressed", String(!isOn));
    showMessage(isOn ? "No notification when a run ends." : on);
  });
  button.setAttribute("aria-pressed", String(wantsNotifications()));
  return button;
}

/** True if this browser may and should show a notification. */
export function wantsNotifications() {
  return window.Notification?.permission === "granted" && preference("notify", false);
}

async function mayNotify() {
  if (!("Notification" in window) || !window.isSecureContext) {
    showError(
      "This browser cannot show notifications for this page: they need https, or the page on the same machine.",
    );
    return false;
  }
  const answer = await Notification.requestPermission();
  if (answer !== "granted") {
    showError("Notifications are blocked: allow them for this page in the browser's settings.");
  }
  return answer === "granted";
}

async function copyWatchLink() {
  const url = new URL(window.location.href);
  url.searchParams.delete("projector");
  url.searchParams.set("watch", "1");
  const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(url.hostname);
  const reach = isLocal
    ? " It works on this machine only: start the page with --host to open it on a phone."
    : "";
  try {
    await navigator.clipboard.writeText(url.href);
    showMessage(`Copied: ${url.href}.${reach}`);
  } catch {
    showMessage(`The link: ${url.href}.${reach}`);
  }
}

// Projector mode (large curves, no buttons, full screen) and the read-only view for phones.

const QUERY = "projector";
const LARGE = "ddp-projector";

/**
 * Follows the URL, a button and the key F; calls `onChange()` after a change. Returns a function that ends
 * it.
 */
export function projector(button, onChange) {
  const isOn = () => document.documentElement.classList.contains(LARGE);
  const set = (isWanted) => {
    document.documentElement.classList.toggle(LARGE, isWanted);
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
  document.documentElement.classList.toggle("ddp-watch-only", query.has("watch"));
  return () => {
    endKeys();
    document.removeEventListener("fullscreenchange", onFullScreen);
    document.documentElement.classList.remove(LARGE, "ddp-watch-only");
  };
}

/** Keeps the page large; a button and the key F toggle full screen. Returns a function that reverts this. */
export function alwaysLarge(button) {
  const toggle = () => (isFull() ? document.exitFullscreen() : fillScreen());
  document.documentElement.classList.add(LARGE);
  button.addEventListener("click", toggle);
  const endKeys = onKeys({ f: toggle });
  return () => {
    endKeys();
    document.documentElement.classList.remove(LARGE);
  };
}

function isFull() {
  return document.fullscreenElement !== null;
}

/** Returns true if the browser allowed full screen. */
async function fillScreen() {
  try {
    await document.documentElement.requestFullscreen();
    return true;
  } catch {
    showMessage("This browser does not allow a page to use the full screen. Try its own key, often F11.");
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
