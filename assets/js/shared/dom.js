// Builds DOM elements. Text always becomes a text node, because names and logs come from other users and must
// never be parsed as HTML; invisible characters in it are made visible.

// Makes invisible characters visible: terminal escapes, marks that change the text direction, zero-width
// characters, and blanks that Unicode classifies as letters. `ddp_gui/http/shell.py` lists them with reasons;
// a test keeps both lists equal.

const ACTING =
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u070f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
  "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ud800-\\udfff\\ufe00-\\ufe0f\\ufeff\\uffa0" +
  "\\ufff0-\\ufffb\\ufffe\\uffff\\u{13430}-\\u{1345f}\\u{16fe4}\\u{1bca0}-\\u{1bca3}\\u{1d159}\\u{1d173}-\\u{1d17a}" +
  "\\u{e0000}-\\u{e0fff}]";
// Invisible characters that are needed in emoji, Persian and Indian scripts, Chinese names and regional
// flags.
const EMOJI =
  "[\\u00a9\\u00ae\\u203c\\u2049\\u2122\\u2139\\u2190-\\u27bf\\u2900-\\u297f\\u2b00-\\u2bff\\u3030\\u303d\\u3297\\u3299\\u{1f000}-\\u{1faff}]";
const JOINED =
  "[\\u0600-\\u060b\\u0620-\\u0dff\\u1000-\\u109f\\u1780-\\u17b3\\u17b6-\\u17ff\\ufb50-\\ufdff\\ufe70-\\ufefc]";
const IDEOGRAPH = "[\\u3400-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}]";
const NEEDED = [
  "\\u{1f3f4}[\\u{e0030}-\\u{e0039}\\u{e0061}-\\u{e007a}]{3,6}\\u{e007f}",
  "[0-9#*]\\ufe0f\\u20e3",
  `${EMOJI}(?:[\\ufe0e\\ufe0f]\\u200d?|\\u200d)`,
  `${JOINED}[\\u200c\\u200d]`,
  `${IDEOGRAPH}[\\u{e0100}-\\u{e01ef}]`,
].join("|");
const FOUND = new RegExp(`(?:${NEEDED})|(${ACTING})`, "gu");

/**
 * Replaces each such character by its code, as in ⟨U+200B⟩.
 * @param {string} text
 */
export function visible(text) {
  // Logs written elsewhere may contain CRLF line ends.
  return text
    .replaceAll("\r\n", "\n")
    .replaceAll(FOUND, (found, acting) => (acting === undefined ? found : `⟨${codeOf(acting)}⟩`));
}

/**
 * @param {string} character
 */
function codeOf(character) {
  if (character === "\u001b") return "ESC";
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * Returns an element with attributes, event listeners (`onclick`) and children: elements, texts, and parts, which
 * have an `element`. Null children are omitted.
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : readable(name, value));
  }
  element.append(
    ...children
      .flat(Infinity)
      .filter((child) => child !== null && child !== undefined)
      .map(shown),
  );
  return element;
}

/** The text of an attribute. In texts that users see or hear, control characters are made visible. */
function readable(name, value) {
  return name === "title" || name === "aria-label" ? visible(String(value)) : String(value);
}

/** The node of a child: an element, the `element` of a part, or text with its control characters made visible. */
function shown(child) {
  const node = child.element ?? child;
  return node instanceof Node ? node : visible(String(node));
}

/** Returns a button that does not submit a form. */
export function makeButton(attributes, ...children) {
  return el("button", { type: "button", ...attributes }, ...children);
}

/** Returns the cells of a table's head, one for each column. Null is that of a column of buttons. */
export function columnHeads(contents) {
  return contents.map((content) =>
    el("th", { scope: "col" }, content ?? el("span", { class: "ddp-unseen" }, "Actions")),
  );
}

/** Returns an SVG element with attributes and children. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.map(shown));
  return element;
}

/** Sets the text of an element if it differs: writing an equal text would still cause a layout. */
export function setText(element, text) {
  const content = text === null || text === undefined ? "" : visible(String(text));
  if (element.textContent !== content) element.textContent = content;
}

/** Sets or removes an attribute if its value differs. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const text = value === true ? "" : readable(name, value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** Shows or hides an element. */
export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Sets the text of an element, which is shown only with a text. */
export function showText(element, text) {
  setText(element, text);
  show(element, Boolean(text));
}

/**
 * Returns an id that is not yet used on the page: `name`, with a number appended when two runs are shown side
 * by side.
 */
export function freeId(name) {
  let id = name;
  for (let number = 2; document.getElementById(id); number += 1) id = `${name}-${number}`;
  return id;
}

/** Returns a section with a heading. */
export function section(title, name, ...children) {
  const id = freeId(`ddp-title-${name}`);
  return el(
    "section",
    { class: `ddp-card ddp-${name}`, "aria-labelledby": id },
    el("h2", { id }, title),
    ...children,
  );
}

/**
 * Updates a card. An error is shown inside the card, so that one damaged file does not empty the page.
 */
export function guarded(element, update) {
  const before = element.querySelector(":scope > .ddp-card-failed");
  try {
    update();
    before?.remove();
  } catch (error) {
    console.error(error);
    element.hidden = false;
    const text = before ?? el("p", { class: "ddp-empty ddp-card-failed", role: "alert" });
    if (!before) element.append(text);
    setText(text, `This part cannot be shown (${error.message}). Other parts are not affected.`);
  }
}

const SHAPES = {
  wait: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zm0 2v4.8l3.2 1.9",
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  square: "M3.5 3.5h9v9h-9z",
  check: "M2.5 8.5l3.5 3.5 7.5-8",
  cross: "M3.5 3.5l9 9m0-9l-9 9",
  question: "M5 5.6a3 3 0 1 1 4.4 2.7C8.4 8.8 8 9.3 8 10.2M8 13v.4",
  save: "M8 2v7.5M4.7 6.6 8 9.9l3.3-3.3M2.5 11v2.5h11V11",
  flag: "M3.5 14.5v-12h8.5l-2 3 2 3H3.5",
  bulb: "M5.5 11.5h5M6.3 14h3.4M8 1.8a4.4 4.4 0 0 0-2.5 8c.5.4.5 1 .5 1.7h4c0-.7 0-1.3.5-1.7A4.4 4.4 0 0 0 8 1.8z",
  bell: "M8 2a4 4 0 0 0-4 4c0 4-1.5 5-1.5 5h11S12 10 12 6a4 4 0 0 0-4-4zM6.6 13.5a1.6 1.6 0 0 0 2.8 0",
  screen: "M1.5 2.5h13v8.5h-13zM5 14h6M8 11v3",
  link: "M6.5 9.5l3-3M7 4.5l1.2-1.2a2.8 2.8 0 0 1 4 4L11 8.5M9 11.5l-1.2 1.2a2.8 2.8 0 0 1-4-4L5 7.5",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5m0 11V15M1 8h1.5m11 0H15M3 3l1 1m8 8 1 1M13 3l-1 1m-8 8-1 1",
  warning: "M8 2 15 14H1zM8 6.5v3.6m0 1.6v.5",
};
const FILLED = new Set(["play", "pause", "square"]);

/** Returns a decorative icon; its meaning must also be given as text next to it. */
export function icon(name) {
  const path = svg("path", {
    d: SHAPES[name] ?? SHAPES.question,
    class: FILLED.has(name) ? "ddp-icon-filled" : "ddp-icon-drawn",
  });
  return svg("svg", { viewBox: "0 0 16 16", class: "ddp-icon", "aria-hidden": "true" }, path);
}

/** Does nothing while the button is busy with a click. */
export function enable(button, isEnabled, title, reason) {
  if (button.dataset.busy) return;
  if (button.disabled === isEnabled) button.disabled = !isEnabled;
  setAttribute(button, "title", isEnabled ? title : reason);
}

/** Returns the bytes of a text in base64. */
export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
