// Actions on runs of the list: rename, tag, note, run again, export, delete.

import { el } from "../shared/dom.js";
import { openDialog } from "../shared/dialog.js";
import { isLive } from "./columns.js";
import { address, callEndpoint, reportAddress, runAddress } from "../shared/net.js";
import { whyNot } from "../auth/person.js";
import { complain, offerUndo } from "../shared/toast.js";

export const MAX_COMPARED = 8;
export const MAX_EXPORTED = 200;
const MAX_REPORTED = 120;
const FORMATS = [
  ["csv", "CSV, for a spreadsheet"],
  ["json", "JSON, for a script"],
  ["tfevents", "TensorBoard’s event file"],
];

/** The URL of the form with the configuration of a run. */
export function runAgainPage(runId) {
  return address(`?from=${encodeURIComponent(runId)}`);
}

/** Links that download the metrics of some runs, and their lab report. */
export function exportLinks(runIds) {
  const ids = runIds.map(encodeURIComponent).join(",");
  const numbers = FORMATS.map(([kind, words]) => {
    const href =
      runIds.length === 1
        ? runAddress(runIds[0], `export.${kind}`)
        : address(`live/runs/export.zip?kind=${kind}&ids=${ids}`);
    return el("a", { href, download: "" }, words);
  });
  const report = el("a", { href: reportAddress(runIds), download: "" }, "Lab report, to read and print");
  return runIds.length > MAX_REPORTED ? numbers : [...numbers, report];
}

/** Opens a dialog for name, tags and note; resolves to true if they were saved. */
export function editRun(row) {
  const name = field(
    "Name",
    el("input", {
      type: "text",
      maxlength: 200,
      value: row.name === row.run_id ? "" : row.name,
      placeholder: row.run_id,
    }),
  );
  const tags = field(
    "Tags, with commas between them",
    el("input", { type: "text", value: row.tags.join(", "), placeholder: "baseline, warm-up" }),
  );
  const note = field(
    "Note",
    el("textarea", { rows: 5, maxlength: 10000, placeholder: "What you tried, what you saw" }),
  );
  note.control.value = row.note;
  return openDialog({
    title: "Name, tags and note",
    content: el("div", { class: "ddp-fields" }, name.element, tags.element, note.element),
    confirm: "Save",
    onConfirm: () => {
      const words = tags.control.value
        .split(",")
        .map((tag) => tag.trim())
        .filter(Boolean);
      return callEndpoint("edit_run", row.run_id, name.control.value, words, note.control.value);
    },
  });
}

function field(label, control) {
  return { control, element: el("label", { class: "ddp-field" }, el("span", {}, label), control) };
}

// Window event after runs were deleted or restored: Undo may be clicked in another view.
export const CHANGED = "ddp-runs-changed";

/** Moves runs to the bin and offers Undo. */
export async function deleteRuns(rows) {
  const live = rows.find(isLive);
  if (live) {
    complain(`${live.name} is ${live.state}: stop it first, then delete it.`);
    return;
  }
  try {
    const { deleted, message } = await callEndpoint(
      "delete_runs",
      rows.map((row) => row.run_id),
    );
    window.dispatchEvent(new Event(CHANGED));
    offerUndo(message, async () => {
      await callEndpoint(
        "restore_runs",
        deleted.map((item) => item.bin_id),
      );
      window.dispatchEvent(new Event(CHANGED));
    });
  } catch (error) {
    complain(error.message);
  }
}

/** The items of a row's menu. */
export function rowMenu(row, { onEdit, onDelete, mayChange }) {
  return [
    mayChange ? el("button", { type: "button", onclick: onEdit }, "Rename, tag, note …") : null,
    el("a", { href: runAgainPage(row.run_id) }, "Run again with changes"),
    el("span", { class: "ddp-menu-title" }, "Export the numbers"),
    ...exportLinks([row.run_id]),
    mayChange
      ? el("button", { type: "button", class: "ddp-menu-danger", onclick: onDelete }, "Delete")
      : el("span", { class: "ddp-menu-title" }, whyNot(row.owner)),
  ];
}
