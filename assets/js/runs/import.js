// Importing a run that was packed on another machine, and what is shown about an imported run.

import { complain, inform } from "../shared/dialog.js";
import { el, setText } from "../shared/dom.js";
import { dateTime } from "../shared/format.js";
import { address, callEndpoint, fetchJson } from "../shared/net.js";

/** @typedef {{ origin: string, imported_unix_s: number, packed_unix_s: number | null, result: string, words: string, differences: string[], num_differences: number }} Imported */

/** A button that imports a zip; files can also be dropped on `target`. `onImported()` is called afterwards. */
export class ImportButton {
  /** @param {() => void} onImported */
  constructor(onImported) {
    this.onImported = onImported;
    this.input = el("input", { type: "file", accept: ".zip,application/zip", hidden: true });
    this.input.addEventListener("change", () => this.take([...(this.input.files ?? [])]));
    this.button = el(
      "button",
      {
        type: "button",
        class: "ddp-button ddp-button-small",
        title: "A zip that was made with “The whole run” in a run’s menu; it can also be dropped here.",
        onclick: () => this.input.click(),
      },
      "Import a run …",
    );
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
        inform((await callEndpoint("import_run", path)).message);
      } catch (error) {
        complain(`${file.name} was not imported: ${error.message}`);
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
  return el(
    "span",
    { class: "ddp-tag ddp-imported", "data-result": imported.result, title: importedWords(imported) },
    `imported: ${imported.words}`,
  );
}

/**
 * Where an imported run comes from, as sentences.
 * @param {Imported} imported
 */
export function importedWords({ origin, imported_unix_s: at, packed_unix_s: packed, words, ...rest }) {
  const when = packed === null ? "" : `, packed ${dateTime(packed)}`;
  const more = rest.num_differences - rest.differences.length;
  const list = [...rest.differences, ...(more > 0 ? [`${more} more`] : [])].join("; ");
  return `Imported ${dateTime(at)} from ${origin}${when}. Check of the hashes: ${words}${list ? ` (${list})` : ""}.`;
}
