// Actions on runs of the list and of the bin, and the import of a run that was packed elsewhere.

import { mayChange, person, whyNot } from "../auth/person.js";
import { act, orShowError, showError, showMessage, offerUndo, openDialog } from "../shared/dialog.js";
import { el, makeButton, setText, show } from "../shared/dom.js";
import { ago, bytes, count, dateTime } from "../shared/format.js";
import { address, callEndpoint, reportAddress, runAddress, fetchJson, rerunAddress } from "../shared/net.js";
import { isLive } from "./columns.js";
import { field, makeTable, paragraph, textButton } from "../shared/widgets.js";

/** `onBack(event)` returns to the list; `others` are placed before the link. */
export function titleWithBackLink(title, onBack, ...others) {
  return el(
    "div",
    { class: "ddp-list-title" },
    el("h1", {}, title),
    others,
    el("a", { href: address("runs"), onclick: onBack }, "All runs"),
  );
}

// Actions on runs of the list: rename, tag, note, run again, export, delete.

export const MAX_COMPARED = 8;
export const MAX_EXPORTED = 200;
const MAX_REPORTED = 120;
const FORMATS = [
  ["csv", "CSV, for a spreadsheet"],
  ["json", "JSON, for a script"],
  ["tfevents", "TensorBoard’s event file"],
];

/** Links that download the metrics of some runs, and their lab report. */
export function exportLinks(runIds) {
  const ids = runIds.map(encodeURIComponent).join(",");
  const numbers = FORMATS.map(([kind, text]) => {
    const several = address(`live/runs/export.zip?kind=${kind}&ids=${ids}`);
    return download(runIds.length === 1 ? runAddress(runIds[0], `export.${kind}`) : several, text);
  });
  const report = download(reportAddress(runIds), "Lab report, to read and print");
  return runIds.length > MAX_REPORTED ? numbers : [...numbers, report];
}

function download(href, text) {
  return el("a", { href, download: "" }, text);
}

/** Opens a dialog for name, tags and note; resolves to true if they were saved. */
export function editRun(row) {
  const value = row.name === row.run_id ? "" : row.name;
  const name = el("input", { type: "text", maxlength: 200, value, placeholder: row.run_id });
  const tags = el("input", { type: "text", value: row.tags.join(", "), placeholder: "baseline, warm-up" });
  const note = el("textarea", { rows: 5, maxlength: 10000, placeholder: "What you tried, what you saw" });
  note.value = row.note;
  const fields = [field("Name", name), field("Tags, with commas between them", tags), field("Note", note)];
  return openDialog({
    title: "Name, tags and note",
    content: el("div", { class: "ddp-fields" }, fields),
    confirm: "Save",
    onConfirm: () => {
      const text = tags.value.split(",").map((tag) => tag.trim());
      return callEndpoint("edit_run", row.run_id, name.value, text.filter(Boolean), note.value);
    },
  });
}

// Window event after runs were deleted or restored: Undo may be clicked in another view.
export const CHANGED = "ddp-runs-changed";

/** Moves runs to the bin and offers Undo. */
export async function deleteRuns(rows) {
  const live = rows.find(isLive);
  if (live) {
    showError(`${live.name} is ${live.state}: stop it first, then delete it.`);
    return;
  }
  const runIds = rows.map((row) => row.run_id);
  const done = await orShowError(callEndpoint("delete_runs", runIds));
  if (!done) return;
  const binIds = done.deleted.map((item) => item.bin_id);
  window.dispatchEvent(new Event(CHANGED));
  offerUndo(done.message, async () => {
    await callEndpoint("restore_runs", binIds);
    window.dispatchEvent(new Event(CHANGED));
  });
}

/** The items of a row's menu. */
export function rowMenu(row, { onEdit, onDelete, isAllowed }) {
  const title = (text) => el("span", { class: "ddp-menu-title" }, text);
  const zip = (query) => runAddress(row.run_id, "run.zip", query);
  return [
    isAllowed ? makeButton({ onclick: onEdit }, "Rename, tag, note …") : null,
    el("a", { href: rerunAddress(row.run_id) }, "Run again with changes"),
    title("Export the numbers"),
    ...exportLinks([row.run_id]),
    title("Hand in or take along"),
    download(zip({}), "The whole run, as a zip"),
    download(zip({ checkpoint: "true" }), "With its latest checkpoint"),
    isAllowed
      ? makeButton({ class: "ddp-menu-danger", onclick: onDelete }, "Delete")
      : title(whyNot(row.owner)),
  ];
}

// The bin: deleted runs, which can be restored or deleted permanently.

export class BinView {
  /** `onBack(event)` returns to the list. */
  constructor(onBack) {
    this.body = el("tbody", {});
    this.table = makeTable("ddp-table ddp-bin-table", ["Run", "Deleted", "Size", null], this.body);
    show(this.table, false);
    this.nothing = el("p", { class: "ddp-empty", hidden: true }, "The bin is empty.");
    this.empty = textButton("Empty the bin …", () => this.askToEmpty(), "stop", { hidden: true });
    const caption =
      "Deleted runs stay here with all their files until you empty the bin. Nothing is deleted automatically.";
    this.element = el(
      "div",
      { class: "ddp ddp-runs-page" },
      titleWithBackLink("Bin", onBack),
      paragraph("caption", caption),
      this.nothing,
      this.table,
      this.empty,
    );
    document.title = "Bin · Rankscope";
    this.who = null;
    /** @type {Record<string, any>[]} */
    this.items = [];
    /** @type {Record<string, any>[]} */
    this.mine = [];
    this.onChanged = () => this.load();
    window.addEventListener(CHANGED, this.onChanged);
    this.load();
  }

  async load() {
    const result = await orShowError(Promise.all([person(), callEndpoint("list_bin")]));
    if (!result) return;
    [this.who, this.items] = result;
    this.mine = this.items.filter((item) => mayChange(this.who, item.owner));
    show(this.nothing, this.items.length === 0);
    show(this.table, this.items.length > 0);
    show(this.empty, this.mine.length > 0);
    setText(this.empty, `Empty the bin (${bytes(this.size())}) …`);
    this.body.replaceChildren(...this.items.map((item) => this.row(item)));
  }

  size() {
    return this.mine.reduce((sum, item) => sum + item.size_bytes, 0);
  }

  row(item) {
    const isMine = mayChange(this.who, item.owner);
    const click = async () => {
      if (await act(restore, "restore_runs", [item.bin_id])) this.load();
    };
    const restore = textButton("Restore", click, "small", { "aria-label": `Restore ${item.name}` });
    const id = item.name === item.run_id ? null : el("small", {}, item.run_id);
    return el(
      "tr",
      {},
      el("td", {}, el("strong", {}, item.name), id),
      el("td", { title: dateTime(item.deleted_unix_s) }, ago(item.deleted_unix_s)),
      el("td", {}, bytes(item.size_bytes)),
      el("td", {}, isMine ? restore : `of ${item.owner ?? "no one"}`),
    );
  }

  async askToEmpty() {
    const num = this.mine.length;
    const runs = num === 1 ? "1 run" : `${count(num)} runs`;
    const text = `${runs} with all checkpoints and logs will be deleted, which frees ${bytes(this.size())}. This cannot be undone.`;
    const worked = await openDialog({
      title: "Delete permanently?",
      content: el("p", {}, text),
      confirm: `Delete ${runs} permanently`,
      isDangerous: true,
      // Only the runs that were shown: others may have been deleted since then.
      onConfirm: async () => {
        const ids = this.mine.map((item) => item.bin_id);
        showMessage((await callEndpoint("empty_bin", ids)).message);
      },
    });
    if (worked) this.load();
  }

  close() {
    window.removeEventListener(CHANGED, this.onChanged);
  }
}

// Importing a run that was packed on another machine, and what is shown about an imported run.

/** @typedef {{ origin: string, imported_unix_s: number, packed_unix_s: number | null, result: string, words: string, differences: string[], num_differences: number }} Imported */

/** A button that imports a zip; files can also be dropped on `target`. `onImported()` is called afterwards. */
export class ImportButton {
  /** @param {() => void} onImported */
  constructor(onImported) {
    this.onImported = onImported;
    const onchange = () => this.take([...(this.input.files ?? [])]);
    this.input = el("input", { type: "file", accept: ".zip,application/zip", hidden: true, onchange });
    const title = "A zip that was made with “The whole run” in a run’s menu; it can also be dropped here.";
    this.button = textButton("Import a run …", () => this.input.click(), "small", { title });
    this.element = el("span", {}, this.button, this.input);
  }

  /** Imports zips that are dropped on an element. */
  acceptDrops(target) {
    target.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    target.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
  }

  /** Imports one file after the other. */
  async take(files) {
    if (this.button.disabled) return;
    this.button.disabled = true;
    setText(this.button, "Importing …");
    for (const file of files) {
      try {
        const form = new FormData();
        form.append("files", file);
        const [path] = await fetchJson(address("gradio_api/upload"), { method: "POST", body: form });
        showMessage((await callEndpoint("import_run", path)).message);
      } catch (error) {
        showError(`${file.name} was not imported: ${error.message}`);
      }
    }
    this.button.disabled = false;
    setText(this.button, "Import a run …");
    this.input.value = "";
    this.onImported();
  }
}

/**
 * The badge of an imported run with the result of its check; null for any other run.
 * @param {Imported | null | undefined} imported
 */
export function importedBadge(imported) {
  if (!imported) return null;
  const attributes = { "data-result": imported.result, title: importedText(imported) };
  return el("span", { class: "ddp-tag ddp-imported", ...attributes }, imported.words);
}

/**
 * Where an imported run comes from, as sentences.
 * @param {Imported} imported
 */
export function importedText({ origin, imported_unix_s: at, packed_unix_s: packed, words: text, ...rest }) {
  const when = packed === null ? "" : `, packed ${dateTime(packed)}`;
  const more = rest.num_differences - rest.differences.length;
  const list = [...rest.differences, ...(more > 0 ? [`${more} more`] : [])].join("; ");
  return `Imported ${dateTime(at)} from ${origin}${when}. Check of the hashes: ${text}${list ? ` (${list})` : ""}.`;
}
