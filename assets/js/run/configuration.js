// The configuration of a run: changed settings, differences from the previous run, and all settings.

import { el, section, setText, show } from "../shared/dom.js";
import { againAddress, address, fetchJson, runAddress } from "../shared/net.js";

export class ConfigurationPanel {
  constructor(runId) {
    this.note = el("p", { class: "ddp-empty" }, "Reading …");
    this.chosen = el("dl", { class: "ddp-settings" });
    this.before = el("div", {});
    this.all = el("dl", { class: "ddp-settings" });
    this.element = section(
      "Configuration",
      "configuration",
      this.note,
      this.chosen,
      this.before,
      el("details", {}, el("summary", {}, "All settings"), this.all),
      el(
        "p",
        {},
        el(
          "a",
          { class: "ddp-button ddp-button-small", href: againAddress(runId) },
          "Run again with changes",
        ),
      ),
    );
    fetchJson(runAddress(runId, "configuration")).then(
      (found) => this.fill(found),
      (error) => setText(this.note, error.message),
    );
  }

  fill({ fields, before }) {
    const chosen = fields.filter((field) => !field.is_default && field.field !== "name");
    setText(this.note, "All settings have their default values.");
    show(this.note, chosen.length === 0);
    this.chosen.replaceChildren(...chosen.map(entry));
    this.all.replaceChildren(...fields.map(entry));
    if (before) this.before.replaceChildren(...changesFrom(before));
  }
}

function entry({ field, label, help, value }) {
  return el("div", { title: help }, el("dt", {}, label, el("code", {}, field)), el("dd", {}, words(value)));
}

function changesFrom({ run_id: runId, changes }) {
  const link = el("a", { href: address(`run?id=${encodeURIComponent(runId)}`) }, runId);
  if (changes.length === 0) {
    return [el("p", { class: "ddp-caption" }, "The same configuration as the run before, ", link, ".")];
  }
  const rows = changes.map(({ label, before, now }) =>
    el("tr", {}, el("td", {}, label), el("td", {}, words(before)), el("td", {}, el("strong", {}, words(now)))),
  ); // prettier-ignore
  const head = ["setting", "then", "now"].map((title) => el("th", { scope: "col" }, title));
  return [
    el("h3", {}, "Changed since the run before, ", link),
    el("table", { class: "ddp-table" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
  ];
}

function words(value) {
  if (value === null || value === "") return "–";
  if (typeof value === "boolean") return value ? "on" : "off";
  return String(value);
}
