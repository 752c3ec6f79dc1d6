// The secondary buttons of a run's page: projector, notification, read-only link, report.

import { reportAddress } from "../../shared/net.js";
import { el, icon, makeButton, setAttribute } from "../../shared/dom.js";
import { prefer, preference } from "../../shared/browser.js";
import { complain, inform } from "../../shared/dialog.js";

/** Returns the row of buttons, and the projector button, which the page handles. */
export function headerTools(runId) {
  const projectorButton = tool(
    "screen",
    "Projector",
    "Large curves, no buttons, the whole screen (F; Escape to leave)",
    null,
  );
  projectorButton.setAttribute("aria-pressed", "false");
  const element = el(
    "div",
    { class: "ddp-tools", role: "group", "aria-label": "View and sharing" },
    projectorButton,
    notifyButton(),
    tool(
      "link",
      "Copy viewer link",
      "Copies a link to this page without its buttons, for phones and guests",
      copyWatchLink,
    ),
    el(
      "a",
      {
        class: "ddp-tool",
        href: reportAddress([runId]),
        download: "",
        title: "One page with curves, configuration, results and events: opens offline, and prints",
      },
      icon("save"),
      el("span", {}, "Report"),
    ),
  );
  return { element, projectorButton };
}

export function tool(shape, words, title, onclick) {
  return makeButton({ class: "ddp-tool", title, onclick }, icon(shape), el("span", {}, words));
}

function notifyButton() {
  const button = tool("bell", "Notify me", "A browser notification when the run ends", async () => {
    const isOn = button.getAttribute("aria-pressed") === "true";
    if (!isOn && !(await mayNotify())) return;
    prefer("notify", !isOn);
    setAttribute(button, "aria-pressed", String(!isOn));
    inform(
      isOn
        ? "No notification when a run ends."
        : "While the page of a run is open, this browser notifies you when the run ends.",
    );
  });
  button.setAttribute(
    "aria-pressed",
    String(preference("notify", false) && window.Notification?.permission === "granted"),
  );
  return button;
}

async function mayNotify() {
  if (!("Notification" in window) || !window.isSecureContext) {
    complain(
      "This browser cannot show notifications for this page: they need https, or the page on the same machine.",
    );
    return false;
  }
  const answer = await Notification.requestPermission();
  if (answer !== "granted") {
    complain("Notifications are blocked: allow them for this page in the browser's settings.");
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
    inform(`Copied: ${url.href}.${reach}`);
  } catch {
    inform(`The link: ${url.href}.${reach}`);
  }
}
