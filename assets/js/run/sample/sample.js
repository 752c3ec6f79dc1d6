// The model's current predictions, in the form of its task: text, images, table rows, decision regions or a
// curve; and the confusion matrix.

import { columnHeads, el, makeButton, section, setText, show } from "../../shared/dom.js";
import { count, percent } from "../../shared/format.js";
import { fetchJson, runAddress } from "../../shared/net.js";
import { term } from "../../shared/terms.js";
import { paragraph } from "../../shared/widgets.js";
import { samples } from "../try/answers.js";
import { makeCurveView, makeSurfaceView } from "./drawings.js";
import { makeImagesView, makeTextsView, RowsView } from "./lists.js";

// Each view has an `element` and an `update(content, step)` that returns the caption.
const VIEWS = {
  text: () => new TextView(),
  images: makeImagesView,
  texts: makeTextsView,
  rows: () => new RowsView(),
  surface: makeSurfaceView,
  curve: makeCurveView,
};

export class SamplePanel {
  constructor() {
    this.caption = paragraph("caption", "\u00a0");
    this.empty = paragraph("empty", "Appears soon after training starts.");
    this.container = el("div", { class: "ddp-sample-place" });
    this.element = section("What the model predicts now", "sample", this.caption, this.empty, this.container);
  }

  update({ sample }) {
    if (!sample || !(sample.type in VIEWS)) return;
    show(this.empty, false);
    if (this.type !== sample.type) {
      this.close();
      this.type = sample.type;
      this.view = VIEWS[sample.type]();
      this.container.replaceChildren(this.view.element);
    }
    setText(this.caption, this.view.update(sample.content, sample.step));
  }

  close() {
    this.view?.close?.();
  }
}

class TextView {
  constructor() {
    this.element = el("blockquote", { class: "ddp-sample-text", dir: "auto" });
  }

  update(text, step) {
    setText(this.element, text.trim());
    return `Text that the model generated after step ${count(step)}.`;
  }
}

// The confusion matrix of the latest evaluation, and the samples behind its cells.

export class ConfusionPanel {
  constructor(runId) {
    this.runId = runId;
    this.text = el("span", {});
    const name = term("confusion matrix", "Confusion matrix");
    const caption = paragraph("caption", name, this.text);
    this.table = el("table", { class: "ddp-confusion" });
    const aria = { tabindex: 0, role: "region", "aria-label": "Confusion matrix" };
    const scroll = el("div", { class: "ddp-scroll-x", ...aria }, this.table);
    this.behind = el("p", { class: "ddp-hint", role: "status" }, "Choose a number to see samples behind it.");
    this.samples = el("div", { class: "ddp-try-nearest" });
    this.element = section("What it mixes up", "confusion", caption, scroll, this.behind, this.samples);
    show(this.element, false);
  }

  update({ confusion }) {
    if (!confusion) return;
    const { counts, step } = confusion;
    const names = confusion.class_names ?? counts.map((_, index) => `class ${index}`);
    show(this.element, true);
    setText(
      this.text,
      `: rows are the true classes, columns the predictions, over the whole validation split after step ${count(step)}. ${worst(counts, names)}`,
    );
    if (this.names !== names.join("\n")) this.build(names);
    counts.forEach((row, truth) => {
      const total = row.reduce((sum, value) => sum + value, 0) || 1;
      row.forEach((value, predicted) => {
        const cell = this.cells[truth][predicted];
        setText(cell, value === 0 ? "" : count(value));
        cell.disabled = value === 0;
        cell.parentElement?.style.setProperty("--share", (value / total).toFixed(3));
        cell.title = `${names[truth]} predicted as ${names[predicted]}: ${count(value)}, ${percent(value / total)}`;
      });
    });
  }

  /** Shows samples of a class that the model of the latest checkpoint takes for another, or recognises. */
  async open(truth, predicted, names) {
    setText(this.behind, "Looking for the samples …");
    this.samples.replaceChildren();
    try {
      const address = runAddress(this.runId, "model/confused", { label: truth, prediction: predicted });
      const { num_found: num, step, ...found } = await fetchJson(address);
      setText(
        this.behind,
        `${count(num)} of class ${names[truth]} predicted as ${names[predicted]} at checkpoint ${count(step)}, the surest first.`,
      );
      this.samples.replaceChildren(...samples(found));
    } catch (error) {
      setText(this.behind, error.message);
    }
  }

  build(names) {
    this.names = names.join("\n");
    this.cells = names.map((_, truth) =>
      names.map((__, predicted) => makeButton({ onclick: () => this.open(truth, predicted, names) })),
    );
    const head = el("tr", {}, el("td", {}), columnHeads(names.map((name) => el("span", {}, name))));
    const cellOf = (truth, predicted) =>
      el("td", { class: truth === predicted ? "ddp-right" : "ddp-wrong" }, this.cells[truth][predicted]);
    const rowOf = (name, truth) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        names.map((_, predicted) => cellOf(truth, predicted)),
      );
    this.table.replaceChildren(el("thead", {}, head), el("tbody", {}, names.map(rowOf)));
  }
}

function worst(counts, names) {
  let most = { value: 0 };
  counts.forEach((row, truth) => row.forEach((value, predicted) => {
    if (truth !== predicted && value > most.value) most = { value, truth, predicted };
  })); // prettier-ignore
  return most.value === 0
    ? "No mistakes."
    : `Most often ${names[most.truth]} is predicted as ${names[most.predicted]}: ${count(most.value)} times.`;
}
