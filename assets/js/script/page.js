// "Run my script": the code, and what was read from it.

import { Editor, keepOpened, keptOpened, markList } from "./editor.js";
import { labelled, StartCard } from "./start_card.js";
import { el, section, show } from "../shared/dom.js";
import { optionsOf, paragraph, textButton } from "../shared/widgets.js";
import { address, callEndpoint, PlainError } from "../shared/net.js";
import { orShowError } from "../shared/dialog.js";

// Reads dropped or chosen files and folders: texts as text, others as base64.

const IGNORED = /(^|\/)(\.|__pycache__|node_modules|wandb|runs\/)/;

/** Returns the text of a file; empty for other files. */
export function textOf(content) {
  return typeof content === "string" ? content : "";
}

/** Returns `{ files }`, or `{ zip }` in base64 if one zip was given; throws a PlainError if it is too much. */
async function filesOf({ items, files }, mostBytes) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const walked = await Promise.all(entries.map((entry) => walk(entry, "")));
  const dropped = [...files].map((file) => [file.webkitRelativePath || file.name, file]);
  const chosen = (entries.length > 0 ? walked.flat() : dropped).filter(([name]) => !IGNORED.test(name));
  const size = chosen.reduce((sum, [, file]) => sum + file.size, 0);
  if (size > mostBytes) {
    const [has, most] = [size, mostBytes].map((bytes) => `${Math.round(bytes / 1000)} kB`);
    throw new PlainError(`These files have ${has}; allowed: at most ${most}. Give the path instead.`);
  }
  if (chosen.length === 1 && chosen[0][0].toLowerCase().endsWith(".zip")) {
    return { zip: await base64(chosen[0][1]), files: {} };
  }
  const contents = await Promise.all(chosen.map(async ([name, file]) => [name, await contentOf(file)]));
  return { files: withoutCommonFolder(Object.fromEntries(contents)), zip: null };
}

async function walk(entry, before) {
  if (entry.isFile) {
    const file = await new Promise((take, fail) => {
      entry.file(take, fail);
    });
    return [[before + entry.name, file]];
  }
  if (IGNORED.test(`${before}${entry.name}/`)) return [];
  const reader = entry.createReader();
  const children = [];
  for (;;) {
    // A folder is read in parts of at most a hundred entries.
    const part = await new Promise((take, fail) => {
      reader.readEntries(take, fail);
    });
    if (part.length === 0) break;
    children.push(...part);
  }
  return (await Promise.all(children.map((child) => walk(child, `${before}${entry.name}/`)))).flat();
}

async function contentOf(file) {
  const bytes = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return { base64: await base64(file) };
  }
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCodePoint(byte)).join(""));
}

/** Leaves out a folder that contains all files. */
export function withoutCommonFolder(files) {
  const names = Object.keys(files);
  const first = names[0]?.split("/")[0];
  if (names.length === 0 || !names.every((name) => name.startsWith(`${first}/`))) return files;
  return Object.fromEntries(names.map((name) => [name.slice(first.length + 1), files[name]]));
}

const READ_AFTER_MS = 400;
const HINT = "Paste your script here, or drop a file, a folder or a zip on this page.";
const NEW_FILE = "train.py";
// For visitors without a script: the settings that are shown as one.
const EXAMPLE = { dataset: "digits", model: "mlp" };
// The completion ends each line that it adds with this comment.
const ADDED = "  # added";

/** Fills an element with the page; returns a function that unmounts it. */
export function mountScript(root) {
  root.replaceChildren(el("div", { class: "ddp ddp-loading", role: "status" }, "Opening …"));
  let page = null;
  callEndpoint("script_page").then(
    (setup) => {
      page = new ScriptPage(root, setup);
    },
    (error) => root.replaceChildren(el("p", { class: "ddp ddp-nothing" }, error.message)),
  );
  return () => page?.close();
}

class ScriptPage {
  constructor(root, setup) {
    this.setup = setup;
    this.files = { [NEW_FILE]: "" };
    this.entry = this.shown = NEW_FILE; // oxlint-disable-line no-multi-assign
    /** @type {any} */
    this.reading = { marks: [], completed: null, problem: null };
    this.timer = 0;
    this.editor = new Editor({ label: "The script", hint: HINT, onChange: () => this.changed() });
    this.card = new StartCard(setup, {
      code: () => ({ files: this.files, entry: this.entry }),
      onEntry: (name) => this.chooseEntry(name),
      onCpu: () => this.showNotes(),
    });
    this.fileList = el("select", { "aria-label": "File in the editor", hidden: true });
    this.fileList.addEventListener("change", () => this.showFile(this.fileList.value));
    this.notes = el("div", { class: "ddp-script-notes" });
    root.replaceChildren(this.layOut());
    this.ended = new AbortController();
    root.addEventListener("dragover", (event) => event.preventDefault(), { signal: this.ended.signal });
    root.addEventListener("drop", (event) => this.drop(event), { signal: this.ended.signal });
    this.load({ files: this.files, entry: NEW_FILE });
    this.fillFromAddress();
    window.addEventListener("pagehide", () => this.keep(), { signal: this.ended.signal });
  }

  layOut() {
    const chosen = el("input", { type: "file", multiple: true, hidden: true });
    const folder = el("input", { type: "file", webkitdirectory: true, hidden: true });
    for (const input of [chosen, folder]) {
      input.addEventListener("change", () => this.take({ items: [], files: [...input.files] }));
    }
    const button = (text, onclick) => textButton(text, onclick, "small");
    const path = el("input", { type: "text", id: "ddp-script-path" });
    const openPath = () => this.open(path.value, "");
    this.example = button("Open an example", () => this.openExample());
    const { refused, may_name_paths: mayNamePaths } = this.setup;
    const sources = [
      button("Choose files …", () => chosen.click()),
      button("Choose a folder …", () => folder.click()),
      this.example,
      chosen,
      folder,
      this.fileList,
    ];
    const where = [labelled("Path on this machine", path), button("Open", openPath)];
    const code = section(
      "Code",
      "script-code",
      el("div", { class: "ddp-script-sources" }, sources),
      mayNamePaths ? el("div", { class: "ddp-script-path" }, where) : null,
      this.editor,
      this.notes,
    );
    const form = el("a", { href: address("") }, "Choose a model and data");
    const here = el("strong", { "aria-current": "page" }, "Run my script");
    return el(
      "div",
      { class: "ddp ddp-script-page" },
      el("h1", {}, "Run my script"),
      paragraph("ways", form, here),
      refused ? el("p", { class: "ddp-problem", role: "alert" }, `No script can be run: ${refused}.`) : null,
      el("div", { class: "ddp-script-columns" }, code, this.card),
    );
  }

  async openExample() {
    const code = await orShowError(callEndpoint("as_code", EXAMPLE));
    if (code) this.load({ files: { [NEW_FILE]: code.train_py }, entry: NEW_FILE, ranks: code.num_ranks });
  }

  /** Keeps code and settings for a reload and for the way back from the run. */
  keep() {
    keepOpened(window.location.search, { files: this.files, entry: this.entry, ...this.card.settings() });
  }

  async fillFromAddress() {
    const { search } = window.location;
    const from = new URLSearchParams(search).get("from");
    const [arrival] = performance.getEntriesByType("navigation");
    const isBack = arrival instanceof PerformanceNavigationTiming && arrival.type !== "navigate";
    const storedCode = from === null || isBack ? keptOpened(search) : null;
    const opened = storedCode ?? (from && (await orShowError(callEndpoint("script_code", from))));
    if (opened) this.load(opened);
  }

  /** Shows code and, if given, the settings of a run. */
  load({ files, entry, ...settings }) {
    this.files = files;
    this.card.load(settings);
    this.chooseEntry(entry ?? likelyEntry(files));
    const names = Object.keys(files);
    this.card.listFiles(names, this.entry);
    this.fileList.replaceChildren(
      ...optionsOf(
        names.map((name) => [name, name]),
        this.entry,
      ),
    );
    show(this.fileList, names.length > 1);
  }

  chooseEntry(name) {
    this.entry = name;
    this.showFile(name);
  }

  showFile(name) {
    this.shown = name;
    this.fileList.value = name;
    this.editor.text = textOf(this.files[name] ?? "");
    this.readAfter(0);
  }

  changed() {
    if (typeof this.files[this.shown] === "string") this.files[this.shown] = this.editor.text;
    this.readAfter(READ_AFTER_MS);
  }

  readAfter(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), ms);
  }

  async read() {
    const text = textOf(this.files[this.entry] ?? "");
    const reading = await orShowError(callEndpoint("read_script", text));
    if (!reading) return;
    this.reading = reading;
    show(this.example, text.trim() === "");
    this.card.take(reading, text.trim() === "");
    this.showNotes();
  }

  /** Marks lines and says why: an error, requests for GPUs, what a listing leaves out. */
  showNotes() {
    const hasGpus = this.setup.num_gpus > 0;
    const level = hasGpus || this.card.cpu.checked ? "gpu" : "error";
    const marks = this.reading.marks.map((mark) => (mark.level === "gpu" ? { ...mark, level } : mark));
    const added = addedLines(this.editor.text);
    this.editor.mark(this.shown === this.entry ? [...marks, ...added] : []);
    const { problem } = this.reading;
    this.notes.replaceChildren(
      ...(problem ? [paragraph("problem", problem)] : []),
      ...(hasGpus ? [] : this.gpuNotes()),
      ...this.completionNotes(),
      ...(added.length > 0 ? [el("p", {}, `${added.length} lines were added; they are marked.`)] : []),
    );
  }

  gpuNotes() {
    const requests = this.reading.marks.filter(({ level }) => level === "gpu");
    if (requests.length === 0) return [];
    const text = this.card.cpu.checked
      ? "There is no GPU here. On CPU ranks these lines have no effect:"
      : "There is no GPU here, and these lines ask for one. “Run on CPU ranks” lets the script run:";
    return [el("p", {}, text), markList(this.editor, requests)];
  }

  completionNotes() {
    const { completed } = this.reading;
    if (!completed) return [];
    const { sentences, left, text } = completed;
    const add = () => {
      this.files[this.entry] = text;
      this.showFile(this.entry);
    };
    const rest = `Nothing can stand in for ${left.join(", ")}: add it yourself.`;
    return [
      el("p", {}, "Something is missing in this script. These lines can be added to it:"),
      el("ul", {}, [...sentences, ...(left.length > 0 ? [rest] : [])].map((sentence) => el("li", {}, sentence))),
      textButton("Add these lines", add, "small"),
    ]; // prettier-ignore
  }

  drop(event) {
    event.preventDefault();
    this.take(event.dataTransfer);
  }

  async take(dropped) {
    const chosenFiles = await orShowError(filesOf(dropped, this.setup.most_bytes));
    if (!chosenFiles) return;
    const { files, zip } = chosenFiles;
    if (zip) await this.open("", zip);
    else if (Object.keys(files).length > 0) this.load({ files, entry: likelyEntry(files) });
  }

  async open(path, zip) {
    const opened = await orShowError(callEndpoint("open_script", path, zip));
    if (opened) this.load(opened);
  }

  close() {
    clearTimeout(this.timer);
    this.ended.abort();
  }
}

function likelyEntry(files) {
  const names = Object.keys(files).filter((name) => name.endsWith(".py"));
  const defaultEntry = ["train.py", "main.py", "train_ddp.py", "run.py"].find((name) => names.includes(name));
  return (
    defaultEntry ?? names.find((name) => textOf(files[name]).includes("__main__")) ?? names[0] ?? NEW_FILE
  );
}

function addedLines(text) {
  const lines = text.split("\n").map((line, index) => ({ line: index + 1, isAdded: line.endsWith(ADDED) }));
  return lines
    .filter(({ isAdded }) => isAdded)
    .map(({ line }) => ({ line, message: "This line was added.", level: "added" }));
}
