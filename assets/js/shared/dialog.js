// Modal dialogs, the menus of buttons, and short messages at the edge of the page.

import { el, icon, makeButton, setAttribute } from "./dom.js";
import { callEndpoint } from "./net.js";
import { textButton } from "./widgets.js";

let number = 0;

/**
 * Opens a dialog. Resolves to true when the main button succeeded, to false when the dialog was cancelled. If
 * `onConfirm()` throws, the dialog stays open and shows the error message.
 */
export function openDialog({ title, content, confirm, isDangerous = false, onConfirm }) {
  number += 1;
  const problem = el("p", { class: "ddp-dialog-problem", role: "alert", hidden: true });
  const main = textButton(confirm, null, isDangerous ? "stop" : "main", { type: "submit" });
  const leave = textButton("Cancel", () => dialog.close());
  const id = `ddp-dialog-${number}`;
  const buttons = el("div", { class: "ddp-dialog-buttons" }, leave, main);
  const form = el("form", { method: "dialog" }, el("h2", { id }, title), content, problem, buttons);
  const dialog = el("dialog", { class: "ddp ddp-dialog", "aria-labelledby": id }, form);
  return new Promise((resolve) => {
    let worked = false;
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(worked);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      main.disabled = true;
      try {
        await onConfirm();
        worked = true;
        dialog.close();
      } catch (error) {
        problem.hidden = false;
        problem.textContent = error.message;
      } finally {
        main.disabled = false;
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

let openMenu = null;

const FOCUSABLE = "a, button, input";

/**
 * Opens or closes a menu below a button. `items` are links, buttons, and labels with a checkbox; a click on a
 * label keeps the menu open.
 */
export function toggleMenu(button, items) {
  const isSame = openMenu?.button === button;
  openMenu?.close();
  if (isSame) return;
  const label = button.getAttribute("aria-label") ?? button.textContent;
  const menu = el("div", { class: "ddp ddp-menu", role: "group", "aria-label": label }, items);
  const close = () => {
    menu.remove();
    setAttribute(button, "aria-expanded", "false");
    document.removeEventListener("pointerdown", onOutside, true);
    window.removeEventListener("resize", close);
    window.removeEventListener("scroll", onScroll);
    openMenu = null;
  };
  // A focus in the menu may scroll the page: the menu stays next to its button, while that is visible.
  const onScroll = () => {
    const { top, bottom } = button.getBoundingClientRect();
    if (bottom <= 0 || top >= window.innerHeight) close();
    else placeBelow(menu, button);
  };
  const onOutside = (event) => {
    if (!menu.contains(event.target) && !button.contains(event.target)) close();
  };
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      close();
      button.focus();
      return;
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const places = [...menu.querySelectorAll(FOCUSABLE)];
    places.at((places.indexOf(document.activeElement) + step) % places.length).focus({ preventScroll: true });
  });
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !menu.contains(event.relatedTarget)) close();
  });
  // Deferred, so that the click finishes bubbling before the menu is removed.
  menu.addEventListener("click", (event) => {
    if (!event.target.closest("label")) setTimeout(close);
  });
  document.body.append(menu);
  placeBelow(menu, button);
  setAttribute(button, "aria-expanded", "true");
  document.addEventListener("pointerdown", onOutside, true);
  window.addEventListener("resize", close);
  window.addEventListener("scroll", onScroll);
  openMenu = { button, close };
  menu.querySelector(FOCUSABLE)?.focus({ preventScroll: true });
}

function placeBelow(menu, button) {
  const box = button.getBoundingClientRect();
  const isRoom = box.bottom + menu.offsetHeight + 8 < window.innerHeight;
  menu.style.top = `${isRoom ? box.bottom + 4 : Math.max(8, box.top - menu.offsetHeight - 4)}px`;
  menu.style.left = `${Math.max(8, Math.min(box.right - menu.offsetWidth, window.innerWidth - menu.offsetWidth - 8))}px`;
}

// Short messages at the edge of the page: the result or the error of a click.

const SHOWN_MS = 5000;

let shelf = null;

/** The button that closes a message. @param {() => void} onclick */
export function closeButton(onclick) {
  return makeButton({ class: "ddp-toast-close", "aria-label": "Close", onclick }, "×");
}

/** Shows a message for a few seconds. */
export function showMessage(message) {
  const toast = put(message, "check", "ddp-toast");
  setTimeout(() => toast.remove(), SHOWN_MS);
}

const UNDO_SHOWN_MS = 15000;

/** Shows the result of a click with an Undo button for 15 s; `undo()` may throw. */
export function offerUndo(message, undo) {
  const toast = put(message, "check", "ddp-toast");
  const hiding = setTimeout(() => toast.remove(), UNDO_SHOWN_MS);
  const takeBack = async () => {
    clearTimeout(hiding);
    button.disabled = true;
    await orShowError(undo());
    toast.remove();
  };
  const button = textButton("Undo", takeBack, "small");
  toast.querySelector("p").after(button);
}

/** Shows an error until the user closes it. */
export function showError(message) {
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
  const close = closeButton(() => toast.remove());
  const toast = el("div", { class: className, role }, icon(iconName), el("p", {}, message), close);
  shelf.append(toast);
  return toast;
}

/** Resolves to the result of a request; shows its error and resolves to undefined if it fails. */
export function orShowError(request) {
  return request.catch((error) => showError(error.message));
}

/**
 * Calls an endpoint for a click: marks the button as busy, then shows the message of the answer. Returns the
 * answer, or null if the call failed.
 */
export async function act(button, endpoint, ...values) {
  button.dataset.busy = "true";
  setAttribute(button, "aria-busy", "true");
  button.disabled = true;
  try {
    const answer = await callEndpoint(endpoint, ...values);
    showMessage(answer.message);
    return answer;
  } catch (error) {
    showError(error.message);
    return null;
  } finally {
    delete button.dataset.busy;
    setAttribute(button, "aria-busy", null);
    button.disabled = false;
  }
}

/** A button that calls an endpoint: `call()` returns its name and values, `after()` is called afterwards. */
export function actionButton(text, variant, call, after) {
  const click = async () => {
    await act(button, ...call());
    after();
  };
  const button = textButton(text, click, variant);
  return button;
}
