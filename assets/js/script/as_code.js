// A run as one script: on the page of a run, and on the form. Lines that the latest change of a setting has
// changed and lines that only several ranks need are marked; buttons copy it, download it, and put it into the
// editor of "Run my script".

import { openInEditor } from "./editor.js";
import { buttonLink, buttonRow, collapsed, copyButton, paragraph, textButton } from "../shared/widgets.js";
import { el, section, setAttribute, setText, show } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { callEndpoint, fetchJson, runAddress } from "../shared/net.js";

// Lines of Python: which of them changed, and the parts of a line that get a colour.

const KEYWORDS =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|not|or|pass|raise|return|True|False|try|while|with|yield";
const PARTS = new RegExp(
  `(#.*$)|([rbf]{0,2}"(?:[^"\\\\]|\\\\.)*"|[rbf]{0,2}'(?:[^'\\\\]|\\\\.)*')|\\b(${KEYWORDS})\\b`,
  "g",
);
const QUOTES = '"""';

/**
 * Returns the places of the lines of `after` that are not in `before`. Both are lists of [sign, text]; lines
 * with the sign "-" are not part of the script.
 */
export function changedLines(before, after) {
  const old = before.filter(([sign]) => sign !== "-").map(([, text]) => text);
  const now = after
    .map(([sign, text], container) => ({ sign, text, place: container }))
    .filter(({ sign }) => sign !== "-");
  // Longest common subsequence: lengths[i][j] of old from i and now from j.
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      lengths[i][j] =
        old[i] === now[j].text ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const changed = new Set();
  for (let i = 0, j = 0; j < now.length;) {
    if (i < old.length && old[i] === now[j].text) {
      i += 1;
      j += 1;
    } else if (i < old.length && lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else {
      if (now[j].text.trim()) changed.add(now[j].place);
      j += 1;
    }
  }
  return changed;
}

/**
 * Returns a line as [kind, text] pairs: "comment", "string", "keyword" or "". `inText.isOpen` carries a text
 * of several lines from one line to the next.
 */
export function tokensOf(line, inText) {
  const quotes = line.split(QUOTES).length - 1;
  if (inText.isOpen || quotes > 0) {
    if (quotes % 2 === 1) inText.isOpen = !inText.isOpen;
    return [["string", line]];
  }
  const parts = [];
  let end = 0;
  for (const match of line.matchAll(PARTS)) {
    if (match.index > end) parts.push(["", line.slice(end, match.index)]);
    const [, comment, text] = match;
    parts.push([(comment && "comment") || (text && "string") || "keyword", match[0]]);
    end = match.index + match[0].length;
  }
  if (end < line.length) parts.push(["", line.slice(end)]);
  return parts;
}

class CodePanel {
  constructor() {
    this.code = el("code", {});
    const aria = { tabindex: 0, role: "group", "aria-label": "train.py" };
    this.box = el("pre", { class: "ddp-code-lines", ...aria }, this.code);
    this.text = el("p", { class: "ddp-caption", role: "status" }, "Reading …");
    this.ranks = el("input", { type: "checkbox", onchange: () => this.draw() });
    this.ranksLabel = el("label", {}, this.ranks, el("span", {}, "Mark what several ranks need"));
    const copy = copyButton(() => this.shown.train_py, this.code);
    this.edit = textButton("Open in the editor", () => this.openIt(), "small", { hidden: true });
    this.mayRun = null;
    this.script = buttonLink("Download train.py", { download: "train.py" }, "small");
    this.notebook = buttonLink("Download as a notebook", { download: "train.ipynb" }, "small");
    const buttons = buttonRow(this.edit, copy, this.script, this.notebook);
    this.tools = el("div", { class: "ddp-code-tools" }, this.ranksLabel, buttons);
    this.element = el("div", { class: "ddp-code" }, this.text, this.tools, this.box);
    this.shown = null;
    this.changed = new Set();
  }

  /**
   * Shows the answer of `/as_code`. With `addresses` (of train.py and of the notebook) these are downloaded;
   * otherwise the answer's own texts are.
   * @param {string[] | null} addresses
   */
  update(answer, addresses = null) {
    const before = this.shown;
    this.shown = answer;
    this.changed = before && !before.reason ? changedLines(before.lines, answer.lines) : new Set();
    show(this.tools, !answer.reason);
    show(this.box, !answer.reason);
    show(this.ranksLabel, answer.num_ranks > 1);
    if (answer.reason) {
      setText(this.text, answer.reason);
      return;
    }
    this.mayRun ??= this.askWhetherScriptsRun();
    this.offer(this.script, addresses?.[0], answer.train_py, "text/x-python");
    this.offer(this.notebook, addresses?.[1], JSON.stringify(answer.notebook, null, 1), "application/json");
    this.draw();
    const first = this.code.querySelector(".ddp-code-changed");
    if (first instanceof HTMLElement) this.box.scrollTop = first.offsetTop - this.box.clientHeight / 3;
  }

  /** Shows an error instead of the script. */
  fail(message) {
    this.update({ reason: message, lines: [], num_ranks: 1 });
  }

  /** Shows the button for the editor to users who may run scripts. */
  async askWhetherScriptsRun() {
    try {
      const { refused } = await callEndpoint("script_page");
      show(this.edit, refused === null);
    } catch {
      this.mayRun = null; // asked again with the next answer
    }
  }

  /** Opens the script in "Run my script", to be started with as many ranks. */
  openIt() {
    const { train_py: text, num_ranks: ranks } = this.shown;
    openInEditor({ "train.py": text }, "train.py", { ranks });
  }

  draw() {
    const { lines, command } = this.shown;
    const isCompared = this.ranks.checked && this.shown.num_ranks > 1;
    const all = lines.map(([sign, text], container) => ({ sign, text, place: container }));
    const own = all.filter(({ sign }) => sign !== "-");
    const inText = { isOpen: false };
    const line = ({ sign, text, place: container }) =>
      this.line(isCompared ? sign : " ", text, container, inText);
    this.code.replaceChildren(...(isCompared ? all : own).map(line));
    const note = isCompared ? this.comparedText() : this.changedText();
    setText(this.text, `${count(own.length)} lines, started with: ${command}${note}`);
  }

  comparedText() {
    const { lines, num_ranks: ranks } = this.shown;
    const added = lines.filter(([sign, text]) => sign === "+" && text.trim()).length;
    return `. Marked with +: the ${count(added)} lines that ${count(ranks)} ranks need; with −: what one device has instead.`;
  }

  changedText() {
    const { size } = this.changed;
    if (size === 0) return "";
    return size === 1 ? ". Changed: 1 line." : `. Changed: ${count(size)} lines.`;
  }

  line(sign, text, container, inText) {
    const kind = { "+": "ddp-code-added", "-": "ddp-code-removed" }[sign] ?? "";
    const isChanged = this.changed.has(container);
    const mark = { "+": "+", "-": "−" }[sign] ?? (isChanged ? "•" : " ");
    const parts = tokensOf(text, inText).map(([name, part]) =>
      name ? el("span", { class: `ddp-code-${name}` }, part) : part,
    );
    const element = el("span", { class: `ddp-code-line ${kind}` }, el("i", {}, mark), ...parts, "\n");
    if (isChanged) element.classList.add("ddp-code-changed");
    return element;
  }

  offer(anchor, href, text, type) {
    if (anchor.href.startsWith("blob:")) URL.revokeObjectURL(anchor.href);
    setAttribute(anchor, "href", href ?? URL.createObjectURL(new Blob([text], { type })));
  }
}

// "As code" on the form: the script of the current settings, with the lines that the latest change changed.

const SETTINGS = "#code-settings [data-config]";

/** Fills an element with the script of the form while it is visible; returns a function that stops it. */
export function mountFormCode(root) {
  const panel = new CodePanel();
  root.replaceChildren(panel.element);
  let asked = null;
  const follow = () => {
    const config = document.querySelector(SETTINGS)?.getAttribute("data-config") ?? "";
    if (config === asked || root.offsetParent === null) return;
    asked = config;
    if (config) ask(config);
    else panel.fail("These settings cannot be started: see the message above.");
  };
  const ask = async (config) => {
    try {
      const answer = await callEndpoint("as_code", JSON.parse(config));
      if (config === asked) panel.update(answer);
    } catch (error) {
      if (config === asked) panel.fail(error.message);
    }
  };
  const settings = new MutationObserver(follow);
  const container = document.getElementById("code-settings");
  if (container) settings.observe(container, { childList: true, subtree: true, attributes: true });
  // Opening the fold shows the element.
  const sight = new IntersectionObserver(follow);
  sight.observe(root);
  follow();
  return () => {
    settings.disconnect();
    sight.disconnect();
  };
}

// "As code": the run as one script, read when the section is opened.

/** Returns the section of a run. */
export function runAsCode(runId) {
  const panel = new CodePanel();
  const fold = collapsed("ddp-code-fold", "Show train.py", panel);
  fold.addEventListener("toggle", async () => {
    if (!fold.open || (panel.shown && !panel.shown.reason)) return;
    try {
      const addresses = ["train.py", "train.ipynb"].map((name) => runAddress(runId, `code/${name}`));
      panel.update(await fetchJson(runAddress(runId, "code")), addresses);
    } catch (error) {
      panel.fail(error.message);
    }
  });
  const text =
    "This run as one file, as an engineer would write it: data, model, loop and DDP from top to bottom, with torch and numpy only. Its head says what it leaves out, and how closely its losses agree.";
  return section("As code", "as-code", paragraph("caption", text), fold);
}
