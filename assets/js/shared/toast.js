// Short messages at the edge of the page: the result or the error of a click.

import { el, icon, setAttribute } from "./dom.js";
import { callEndpoint } from "./net.js";

const SHOWN_MS = 5000;

let shelf = null;

/** Shows a message for a few seconds. */
export function inform(message) {
  const toast = put(message, "check", "ddp-toast");
  setTimeout(() => toast.remove(), SHOWN_MS);
}

const UNDO_SHOWN_MS = 15000;

/** Shows the result of a click with an Undo button for 15 s; `undo()` may throw. */
export function offerUndo(message, undo) {
  const toast = put(message, "check", "ddp-toast");
  const button = el("button", { type: "button", class: "ddp-button ddp-button-small" }, "Undo");
  toast.querySelector("p").after(button);
  const hiding = setTimeout(() => toast.remove(), UNDO_SHOWN_MS);
  button.addEventListener("click", async () => {
    clearTimeout(hiding);
    button.disabled = true;
    try {
      await undo();
      toast.remove();
    } catch (error) {
      toast.remove();
      complain(error.message);
    }
  });
}

/** Shows an error until the user closes it. */
export function complain(message) {
  const same = [...(shelf?.querySelectorAll(".ddp-toast-error p") ?? [])].find(
    (node) => node.textContent === message,
  );
  if (!same) put(message, "cross", "ddp-toast ddp-toast-error", "alert");
}

function put(message, iconName, className, role = "status") {
  if (!shelf?.isConnected) {
    shelf = el("div", { class: "ddp ddp-toasts", "aria-live": "polite" });
    document.body.append(shelf);
  }
  const toast = el(
    "div",
    { class: className, role },
    icon(iconName),
    el("p", {}, message),
    el(
      "button",
      { type: "button", class: "ddp-toast-close", "aria-label": "Close", onclick: () => toast.remove() },
      "×",
    ),
  );
  shelf.append(toast);
  return toast;
}

/**
 * Calls an endpoint for a click: marks the button as busy, then shows the result. Returns true if the call
 * succeeded.
 */
export async function act(button, endpoint, ...values) {
  button.dataset.busy = "true";
  setAttribute(button, "aria-busy", "true");
  button.disabled = true;
  try {
    inform((await callEndpoint(endpoint, ...values)).message);
    return true;
  } catch (error) {
    complain(error.message);
    return false;
  } finally {
    delete button.dataset.busy;
    setAttribute(button, "aria-busy", null);
    button.disabled = false;
  }
}
