// "Take this run elsewhere": files that start the run on other machines, in a collapsed section.

import { copyText } from "../shared/command.js";
import { el, freeId, setText, show } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { fetchJson, runAddress } from "../shared/net.js";

const COPIED_SHOWN_MS = 2000;

export class ElsewherePanel {
  constructor(runId) {
    this.runId = runId;
    this.rows = new Map();
    this.lastAsked = 0;
    this.machines = el("input", { type: "number", class: "ddp-input", min: 1, step: 1, required: true });
    this.gpus = el("input", { type: "checkbox" });
    for (const control of [this.machines, this.gpus]) control.addEventListener("change", () => this.ask());
    this.equation = el("p", { class: "ddp-caption", role: "status" }, "Reading …");
    this.fields = el(
      "div",
      { class: "ddp-elsewhere-fields", hidden: true },
      el("label", {}, el("span", {}, "Machines"), this.machines),
      el("label", {}, this.gpus, el("span", {}, "One GPU for each rank")),
    );
    this.list = el("ul", { class: "ddp-elsewhere-list" });
    this.element = el(
      "details",
      { class: "ddp-elsewhere" },
      el("summary", {}, "Take this run elsewhere"),
      el(
        "p",
        { class: "ddp-caption" },
        "Files that start a new run with these settings on other machines. The top of each file states what to change first.",
      ),
      this.fields,
      this.equation,
      this.list,
    );
    this.element.addEventListener("toggle", () => {
      if (this.element.open && this.rows.size === 0) this.ask();
    });
  }

  /** The chosen values as a query; empty until the server has sent its defaults. */
  query() {
    return this.rows.size === 0 ? {} : { num_nodes: this.machines.value, gpus: String(this.gpus.checked) };
  }

  async ask() {
    if (this.rows.size > 0 && !this.machines.reportValidity()) return;
    this.lastAsked += 1;
    const asked = this.lastAsked;
    try {
      const found = await fetchJson(runAddress(this.runId, "elsewhere", this.query()));
      if (asked === this.lastAsked) this.fill(found);
    } catch (error) {
      if (asked === this.lastAsked) setText(this.equation, error.message);
    }
  }

  fill(found) {
    this.machines.max = String(found.max_nodes);
    this.machines.value = String(found.num_nodes);
    this.gpus.checked = found.gpus;
    show(this.fields, true);
    const machines = found.num_nodes === 1 ? "1 machine" : `${count(found.num_nodes)} machines`;
    const ranks = found.num_ranks === 1 ? "1 rank" : `${count(found.num_ranks)} ranks`;
    setText(this.equation, `${machines}: ${ranks} in all, a global batch of ${count(found.global_batch)}.`);
    for (const file of found.files) {
      if (!this.rows.has(file.name)) {
        const row = new FileRow(file);
        this.rows.set(file.name, row);
        this.list.append(row.element);
      }
      this.rows.get(file.name).update(file, runAddress(this.runId, `elsewhere/${file.name}`, this.query()));
    }
  }
}

/** A file: its purpose, whether it was tested, and its text on demand. */
class FileRow {
  constructor({ label, what_for: whatFor, proof }) {
    const id = freeId(`ddp-elsewhere-${label.toLowerCase().replaceAll(" ", "-")}`);
    this.code = el("code", {});
    this.shown = el(
      "details",
      {},
      el("summary", { "aria-label": `Show: ${label}` }, "Show"),
      el("pre", { tabindex: 0, role: "group", "aria-label": label }, this.code),
    );
    this.copy = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-small", "aria-label": `Copy: ${label}` },
      "Copy",
    );
    this.copy.addEventListener("click", () => this.copyIt());
    this.download = el(
      "a",
      { class: "ddp-button ddp-button-small", download: "", "aria-label": `Download: ${label}` },
      "Download",
    );
    this.element = el(
      "li",
      { "aria-labelledby": id },
      el(
        "div",
        { class: "ddp-elsewhere-words" },
        el("p", {}, el("strong", { id }, label), `. ${whatFor}`),
        el("p", { class: "ddp-caption" }, proof),
      ),
      el("div", { class: "ddp-buttons" }, this.copy, this.download),
      this.shown,
    );
  }

  update({ text }, href) {
    setText(this.code, text);
    this.text = text;
    this.download.href = href;
  }

  async copyIt() {
    const isCopied = await copyText(this.text, this.code);
    // Hidden text cannot be selected.
    if (!isCopied) this.shown.open = true;
    setText(this.copy, isCopied ? "Copied" : "Press Ctrl+C");
    setTimeout(() => setText(this.copy, "Copy"), COPIED_SHOWN_MS);
  }
}
