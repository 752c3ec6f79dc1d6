// What Gradio's form lacks: groups in a list, marked problems and changes, suggestions, dropped files, and the
// expected waiting time on the Start button.

import { showError } from "../shared/dialog.js";
import { el, setAttribute, setText, show } from "../shared/dom.js";
import { address, fetchJson, askEvery } from "../shared/net.js";
import { capital } from "../shared/format.js";

// Shows the number of changes on presets and folds, and stores the form's values for a reload.

let storedForm = "{}";

/** Marks the chosen preset and shows on each fold how many fields differ from their defaults. */
export function showChanges() {
  const line = document.querySelector(".ddp-changes");
  if (!line) return;
  keep(line.getAttribute("data-values") ?? "{}");
  for (const button of document.querySelectorAll("button.ddp-preset")) {
    const isChosen = button.id === `preset-${line.getAttribute("data-preset")}`;
    if (isChosen && button.getAttribute("aria-pressed") !== "true") showInStrip(button);
    setAttribute(button, "aria-pressed", String(isChosen));
  }
  const topics = JSON.parse(line.getAttribute("data-topics") ?? "{}");
  for (const fold of document.querySelectorAll(".ddp-fold")) {
    const cover = fold.querySelector(".label-wrap");
    const sign = cover?.querySelector(".icon");
    if (!cover || !sign) continue;
    const note = cover.querySelector(".ddp-fold-count") ?? el("small", { class: "ddp-fold-count" });
    if (!note.isConnected) sign.before(note);
    const num = topics[fold.id.replace("fold-", "")] ?? 0;
    setText(note, num ? `· ${num} changed` : "");
  }
}

/** Scrolls the presets, which are a strip on a phone, to one of them; does not scroll the page. */
function showInStrip(button) {
  const strip = button.parentElement;
  const [inside, seen] = [button.getBoundingClientRect(), strip.getBoundingClientRect()];
  strip.scrollLeft += Math.min(0, inside.left - seen.left) + Math.max(0, inside.right - seen.right);
}

/**
 * Stores the changed fields; KEPT in ddp_gui/train/page.py reads them after a reload. The first preview of a
 * reloaded form has no changes yet: it must not replace what is still to be read.
 */
function keep(values) {
  if (values === storedForm) return;
  storedForm = values;
  try {
    sessionStorage.setItem(`ddp-form${location.search}`, values);
  } catch {
    // Storage is optional.
  }
}

// Splits the text of preset buttons into a title and a description: Gradio's buttons hold only one text.

/** Adds title and description to preset buttons that do not have them yet. */
export function formatPresets() {
  for (const button of document.querySelectorAll("button.ddp-preset")) {
    if (button.firstElementChild || !button.textContent.includes("\n")) continue;
    const [title, text] = button.textContent.trim().split("\n");
    button.replaceChildren(el("strong", {}, title), el("span", {}, text));
    button.addEventListener("click", () => choose(button));
  }
}

/** Marks the preset immediately; the server's response confirms it. */
function choose(button) {
  const line = document.querySelector(".ddp-changes");
  line?.setAttribute("data-preset", button.id.replace("preset-", ""));
  showChanges();
}

// Headings in the list of data sets, which Gradio's dropdown does not support.

/** Sets the group heading on the first data set of each group; CSS draws it above the option. */
export function showDatasetGroups() {
  const options = document.querySelectorAll("#field-dataset [role=option]");
  if (options.length === 0) return;
  const groups = JSON.parse(
    document.getElementById("ddp-dataset-groups")?.getAttribute("data-groups") ?? "{}",
  );
  const isNew = [...options].every((option) => !option.hasAttribute("data-group"));
  let newest = null;
  for (const option of options) {
    const group = groups[option.getAttribute("aria-label") ?? ""] ?? null;
    setAttribute(option, "data-group", group === newest ? null : group);
    newest = group;
  }
  // Gradio scrolled to the selected option before the headings were added.
  const selected = document.querySelector("#field-dataset [aria-selected=true]");
  if (isNew) selected?.scrollIntoView({ block: "center" });
}

// Reports the state of folds to screen readers, which Gradio does not do.

/** Sets aria-expanded on new folds; called after each change of the document. */
export function followFolds() {
  for (const cover of document.querySelectorAll(".ddp-fold > .label-wrap")) {
    if (cover.hasAttribute("aria-expanded")) continue;
    const tell = () => setAttribute(cover, "aria-expanded", String(cover.classList.contains("open")));
    new MutationObserver(tell).observe(cover, { attributeFilter: ["class"] });
    tell();
  }
}

// Marks the form fields named in the list of problems, and links the list to them.

const PLACE = "problems";

/** Marks fields as invalid or empty; called after each change of the document. */
export function markProblems() {
  const box = document.getElementById(PLACE);
  if (!box) return;
  const lines = new Map(
    [...box.querySelectorAll("[data-field]")].map((line) => [
      `field-${line.getAttribute("data-field")}`,
      line,
    ]),
  );
  for (const field of document.querySelectorAll("[id^=field-]")) mark(field, lines.get(field.id));
  if (!box.dataset.isListening) {
    box.dataset.isListening = "yes";
    box.addEventListener("click", goToField);
  }
}

/** The text is drawn below the field by the style sheet. */
function mark(field, line) {
  const text = line?.querySelector("span")?.textContent ?? null;
  setAttribute(field, "data-problem", text && capital(text));
  const isWrong = line !== undefined && line.classList.contains("ddp-wrong");
  setAttribute(field, "data-is-wrong", isWrong ? "yes" : null);
  for (const input of field.querySelectorAll("input, textarea")) {
    setAttribute(input, "aria-invalid", isWrong ? "true" : null);
  }
}

function goToField(event) {
  const name = event.target.closest("[data-go-to]")?.dataset.goTo;
  const field = name && document.getElementById(`field-${name}`);
  if (!field) return;
  const fold = field.closest(".ddp-fold");
  const cover = fold?.querySelector(".label-wrap");
  if (cover && !cover.classList.contains("open")) cover.click();
  // A hidden field cannot take the focus; the fold opens within one frame.
  requestAnimationFrame(() => {
    field.scrollIntoView({ block: "center" });
    field.querySelector("input, textarea")?.focus();
  });
}

// Applies a suggestion from a button or a select. The server sets the fields, because each kind of Gradio
// component needs its own update.

/** Adds one listener for all present and future suggestions. */
export function beginSuggestions() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button.ddp-suggestion") : null;
    if (button instanceof HTMLButtonElement) apply(button.dataset.values);
  });
  document.addEventListener("change", (event) => {
    const choice = event.target;
    if (!(choice instanceof HTMLSelectElement) || !choice.matches("select.ddp-suggestion")) return;
    apply(choice.selectedOptions[0]?.dataset.values);
  });
}

/**
 * A typed letter moves to the next option that begins with it, as in a native select. Gradio would filter the
 * options by the field's text, which cannot be typed into, so that only the selected one would be left.
 */
export function beginTypeAhead() {
  const onLetter = (event) => {
    const box = event.target;
    if (!(box instanceof HTMLInputElement) || !box.readOnly || box.role !== "combobox") return;
    if (event.key.length !== 1 || event.key === " " || event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopImmediatePropagation();
    const list = document.getElementById(box.getAttribute("aria-controls") ?? "");
    const options = [...(list?.querySelectorAll("[role=option]") ?? [])];
    const active = options.findIndex(({ id }) => id === box.getAttribute("aria-activedescendant"));
    const inOrder = [...options.slice(active + 1), ...options.slice(0, active + 1)];
    const letter = event.key.toLowerCase();
    const match = inOrder.find((option) => option.ariaLabel?.toLowerCase().startsWith(letter));
    if (!match) return;
    const keys = ["Home", ...Array(options.indexOf(match)).fill("ArrowDown")];
    for (const key of keys) box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  };
  document.addEventListener("keydown", onLetter, { capture: true });
}

/**
 * Adds a suggestion to those that wait. While a request is on its way, Gradio puts all further clicks off to
 * one request, and that takes all that wait (CLICKED in ddp_gui/train/fill_in.py).
 * @param {string | undefined} values
 */
function apply(values) {
  const list = document.getElementById("suggestion");
  if (!list || !values) return;
  const waiting = JSON.parse(list.dataset.values ?? "[]");
  list.dataset.values = JSON.stringify([...waiting, JSON.parse(values)]);
  list.click();
}

// Drag and drop: a file dropped on the form becomes own data, as with the Upload button.

const FORM = "#start-button";
const CHOOSE = "#choose-own-data";
const INPUT = "#own-data input[type=file]";
/** Browsers repeat dragover while a drag lasts, but do not always report its end. */
const HIDE_AFTER_MS = 400;
const INPUT_WITHIN_MS = 15_000;

/** Adds listeners on every page; they act only on the page with the form. */
export function listenForDrops() {
  const text = el("p", {});
  const veil = el("div", { class: "ddp ddp-drop", role: "status", hidden: true }, text);
  let timer = 0;
  const hide = () => {
    clearTimeout(timer);
    show(veil, false);
  };
  document.addEventListener("dragover", (event) => {
    if (!takesFiles(event)) return;
    event.preventDefault();
    if (!veil.isConnected) document.body.append(veil);
    setText(text, "Drop a zip of images, a table or a text: it becomes your own data.");
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
    showError("Drop one file: a folder of images goes into a zip first.");
    return;
  }
  const given = new DataTransfer();
  given.items.add(files[0]);
  /** @type {HTMLElement | null} */ (document.querySelector(CHOOSE))?.click();
  const input = await inputThere();
  if (input === null) {
    showError("The file could not be uploaded: choose “Your own data…” and press “Upload a file”.");
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

// Marks Start as busy immediately after a click, because creating the run takes a moment.

const START = "#start-button";

/** Adds one listener for all pages. */
export function beginStart() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest(START) : null;
    button?.setAttribute("aria-busy", "true");
  });
  // The Back button restores the page from the cache with the busy mark.
  window.addEventListener("pageshow", () => document.querySelector(START)?.removeAttribute("aria-busy"));
}

// Shows on the Start button how long a run with this configuration would wait in the queue.

const EVERY_MS = 3000;

/** Updates the second line of the button; returns a function that stops it. */
export function mountExpectedWait(button) {
  let query = null;
  let end = () => {};
  const follow = () => {
    const now = queryOfForm();
    if (now === query) return;
    query = now;
    end();
    if (query === null) setAttribute(button, "data-wait", null);
    end = query === null ? () => {} : askEvery(EVERY_MS, () => ask(now), forgetIfUnknown);
  };
  const ask = async (asked) => {
    const { place, words: text } = await fetchJson(address(`live/queue/expected?${asked}`));
    if (asked === query) setAttribute(button, "data-wait", place === null ? null : `Waits: ${text}`);
  };
  const forgetIfUnknown = (problem) => problem && setAttribute(button, "data-wait", null);
  const column = button.parentElement;
  const observer = new MutationObserver(follow);
  observer.observe(column, { childList: true, subtree: true });
  column.addEventListener("change", follow);
  follow();
  return () => {
    observer.disconnect();
    column.removeEventListener("change", follow);
    end();
  };
}

/** The query for the current form; null while the form is invalid. */
function queryOfForm() {
  const equation = document.querySelector(".ddp-equation[data-kind]");
  if (!equation) return null;
  return new URLSearchParams({
    kind: equation.getAttribute("data-kind") ?? "",
    num_ranks: equation.getAttribute("data-ranks") ?? "",
    may_share: String(document.querySelector("#share-gpus input:checked") !== null),
  }).toString();
}
