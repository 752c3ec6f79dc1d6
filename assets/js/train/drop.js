// Drag and drop: a file dropped on the form becomes own data, as with the Upload button.

import { el, setText, show } from "../shared/dom.js";
import { complain } from "../shared/toast.js";

const FORM = "#start-button";
const CHOOSE = "#choose-own-data";
const INPUT = "#own-data input[type=file]";
/** Browsers repeat dragover while a drag lasts, but do not always report its end. */
const HIDE_AFTER_MS = 400;
const INPUT_WITHIN_MS = 15_000;

/** Adds listeners on every page; they act only on the page with the form. */
export function beginDrops() {
  const words = el("p", {});
  const veil = el("div", { class: "ddp ddp-drop", role: "status", hidden: true }, words);
  let timer = 0;
  const hide = () => {
    clearTimeout(timer);
    show(veil, false);
  };
  document.addEventListener("dragover", (event) => {
    if (!takesFiles(event)) return;
    event.preventDefault();
    if (!veil.isConnected) document.body.append(veil);
    setText(words, "Drop a zip of images, a table or a text: it becomes your own data.");
    show(veil, true);
    clearTimeout(timer);
    timer = setTimeout(hide, HIDE_AFTER_MS);
  });
  document.addEventListener("drop", (event) => {
    const { dataTransfer } = event;
    if (!dataTransfer || !takesFiles(event)) return;
    event.preventDefault();
    hide();
    take(dataTransfer.files);
  });
}

function takesFiles(event) {
  return event.dataTransfer?.types.includes("Files") && document.querySelector(FORM) !== null;
}

async function take(files) {
  if (files.length !== 1) {
    complain("Drop one file: a folder of images goes into a zip first.");
    return;
  }
  const given = new DataTransfer();
  given.items.add(files[0]);
  /** @type {HTMLElement | null} */ (document.querySelector(CHOOSE))?.click();
  const input = await inputThere();
  if (input === null) {
    complain("The file could not be uploaded: choose “Your own data…” and press “Upload a file”.");
    return;
  }
  input.files = given.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

/** Waits for the file input, which Gradio renders a moment after own data was chosen. */
function inputThere() {
  /** @returns {HTMLInputElement | null} */
  const find = () => document.querySelector(INPUT);
  return new Promise((resolve) => {
    if (find()) {
      resolve(find());
      return;
    }
    const end = () => {
      observer.disconnect();
      clearTimeout(timer);
      resolve(find());
    };
    const observer = new MutationObserver(() => find() && end());
    const timer = setTimeout(end, INPUT_WITHIN_MS);
    observer.observe(document.body, { childList: true, subtree: true });
  });
}
