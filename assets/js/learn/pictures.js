// The pictures of a lesson: charts with the prediction, tables of numbers, instruments.

import { Chart, lineSample } from "../charts/chart.js";
import { compareFigure, curveText, guessLine, marked } from "../runs/compare_figure.js";
import { samplesAt, speedUp } from "../runs/scaling.js";
import { growth } from "../run/insights.js";
import { columnHeads, el, guarded, show } from "../shared/dom.js";
import { bytes, count, loss, metric, metricLabel, number, shortTime, UNKNOWN } from "../shared/format.js";
import { term } from "../shared/terms.js";
import { inlines } from "./text.js";
import { instrumentOf } from "../run/look_closer/look_closer.js";
import { fetchJson, runAddress } from "../shared/net.js";
import { paragraph } from "../shared/widgets.js";
import { BarsPicture, WaterfallPicture } from "./bars.js";

const TOO_SHORT = "too short to measure";

/** A chart of one curve for all runs. */
export class CurvePicture {
  /** @param {import("./questions.js").Prediction} prediction */
  constructor(picture, prediction) {
    this.picture = picture;
    this.prediction = prediction;
    this.runs = [];
    this.isRevealed = false;
    this.chart = new Chart({
      name: `lesson-${picture.curve.replace(":", "-")}-${picture.axis}`,
      title: curveText(picture.curve),
      empty: "The curves appear as soon as the first run trains.",
      figure: () => this.figure(),
    });
    this.element = el(
      "div",
      { class: "ddp-lesson-picture" },
      this.chart,
      paragraph("hint", inlines(picture.caption)),
    );
  }

  update(runs, isRevealed) {
    this.runs = runs.filter(({ runId }) => runId !== null);
    this.isRevealed = isRevealed;
    this.chart.invalidate();
    this.chart.drawDue();
  }

  figure() {
    const { curve, axis, smoothing, is_logarithmic: isLogarithmic, marks } = this.picture;
    const runs = this.runs.map(({ runId, name }) => ({ run_id: runId, name }));
    const traces = new Map(this.runs.map((run) => [run.runId, run.tracesOf(this.picture)]));
    const figure = compareFigure(runs, traces, { axis, smoothing, isLogarithmic }, curve);
    const expected = this.expected();
    if (expected) figure.data.push(expected);
    if (this.isRevealed) figure.layout = { ...figure.layout, ...marked(marks) };
    return figure;
  }

  /** The drawn prediction as a trace, if it belongs to this chart; otherwise null. */
  expected() {
    const { question, isDrawn, progress } = this.prediction;
    const isOfThis = question.curve === this.picture.curve && question.axis === this.picture.axis;
    if (!isDrawn || !progress.isLocked || !isOfThis) return null;
    const points = this.prediction.points();
    return guessLine("your prediction", { x: points.map(([x]) => x), y: points.map(([, y]) => y) });
  }

  close() {
    this.chart.close();
  }
}

/** The rows of a number table: title, and value of a run. */
const ROWS = {
  loss: [() => term("loss", "Training loss, last"), ({ head }) => loss(head.loss)],
  loss_exact: [() => term("loss", "Training loss, last, all digits"), ({ head }) => exact(head.loss)],
  mean_loss_exact: [() => term("loss", "Training loss, mean over the run, all digits"), ({ head }) => exact(head.mean_loss)],
  validation: [() => term("evaluation", "Validation"), ({ head }) => validation(head)],
  num_steps: ["Optimizer steps", ({ head }) => count(head.step)],
  global_batch: [() => term("global batch", "Global batch"), ({ head }) => count(head.global_batch)],
  samples: ["Samples trained on", ({ head }) => count(samplesAt(head, head.step))],
  step_time: ["Time of a step, median", ({ head }) => (head.pace ? shortTime(head.pace.step_time_s) : TOO_SHORT)],
  throughput: [() => term("throughput", "Samples per second, at the median step"), ({ head }) => (head.pace ? number(head.pace.samples_per_s, 3) : TOO_SHORT)],
  speed_up: [() => term("speed-up", "Speed-up"), (run, runs) => times(speedUp(run.head, runs[0].head))],
  memory: ["Memory of a rank, for model and training", ({ ranks }) => mostMemory(ranks)],
  learning_rate: [() => term("learning rate", "Learning rate, last"), ({ head }) => number(head.learning_rate, 4)],
  took: ["Took", ({ head }) => shortTime(head.elapsed_s)],
}; // prettier-ignore

/** A table of measurements: a row per number, a column per run. */
class NumberPicture {
  constructor(picture) {
    this.picture = picture;
    this.box = el("div", {
      class: "ddp-compare-scroll",
      tabindex: 0,
      role: "group",
      "aria-label": "Measured",
    });
    this.element = el(
      "div",
      { class: "ddp-card ddp-lesson-picture" },
      this.box,
      paragraph("hint", inlines(picture.caption)),
    );
  }

  update(runs) {
    const known = runs.filter(({ head }) => head !== null);
    const heads = columnHeads(known.map((run) => [lineSample(run.index), run.name]));
    const rows = this.picture.numbers.map((name) => {
      const [title, text] = ROWS[name];
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, typeof title === "string" ? title : title()),
        known.map((run) => el("td", {}, text(run, known))),
      );
    });
    const table = el(
      "table",
      { class: "ddp-table" },
      el("thead", {}, el("tr", {}, el("td", {}), heads)),
      el("tbody", {}, rows),
    );
    this.box.replaceChildren(table);
    // A narrow picture has space for two runs.
    this.element.classList.toggle("ddp-lesson-wide", runs.length > 2);
  }
}

/** A number with all digits. */
function exact(value) {
  return value === null ? UNKNOWN : String(value);
}

function validation({ metrics, num_validation: numSamples }) {
  const [found] = Object.entries(metrics ?? {});
  if (!found) return UNKNOWN;
  const [name, value] = found;
  const text = `${metric(name, value)} ${metricLabel(name)}`;
  // The number of correct predictions, if it can be recovered: the accuracy has only five digits.
  const numRight = Math.round(value * numSamples);
  const isCounted = name === "accuracy" && Math.abs(value * numSamples - numRight) <= 6e-6 * numSamples;
  return isCounted ? `${text}: ${count(numRight)} of ${count(numSamples)}` : text;
}

function times(gain) {
  return gain === null ? TOO_SHORT : `${number(gain, 3)} ×`;
}

function mostMemory(ranks) {
  const grown = ranks.map(growth).filter((value) => value !== null);
  return grown.length > 0 ? bytes(Math.max(...grown)) : TOO_SHORT;
}

// An instrument of "Look closer" within a lesson.

class InstrumentPicture {
  constructor(picture) {
    this.picture = picture;
    /** @type {Map<string, { box: HTMLElement, instrument: any, seen: any, isOpen: boolean }>} By run id. */
    this.made = new Map();
    this.boxes = el("div", { class: "ddp-lesson-instruments" });
    this.empty = paragraph("empty", "Appears as soon as the run trains.");
    this.element = el(
      "div",
      { class: "ddp-card ddp-lesson-picture ddp-lesson-wide" },
      this.empty,
      this.boxes,
      paragraph("hint", inlines(picture.caption)),
    );
  }

  update(runs) {
    const shown = this.picture.run === null ? runs : runs.slice(this.picture.run, this.picture.run + 1);
    for (const run of shown) {
      if (run.runId === null || run.head === null || run.isGone) continue;
      if (!this.made.has(run.runId)) this.make(run);
      this.tell(run);
    }
    show(this.empty, this.made.size === 0);
  }

  make(run) {
    const box = el("section", {}, el("h3", {}, lineSample(run.index), run.name));
    /** @type {{ box: HTMLElement, instrument: any, seen: any, isOpen: boolean }} */
    const made = { box, instrument: null, seen: null, isOpen: false };
    this.made.set(run.runId, made);
    this.boxes.append(box);
    fetchJson(runAddress(run.runId, "summary")).then(
      (summary) => {
        made.instrument = instrumentOf(this.picture.instrument, run.runId, summary);
        box.append(made.instrument?.element ?? el("p", {}, `There is no instrument ${this.picture.instrument}.`));
        this.tell(run);
      },
      (error) => box.append(paragraph("hint", error.message)),
    ); // prettier-ignore
  }

  /** Passes the latest payload of a run to its instrument, once. */
  tell({ runId, payload }) {
    const made = this.made.get(runId);
    if (!made?.instrument || made.seen === payload) return;
    made.seen = payload;
    guarded(made.instrument.element, () => made.instrument.update(payload));
    if (made.isOpen) return;
    made.isOpen = true;
    made.instrument.open();
  }

  close() {
    for (const { instrument } of this.made.values()) instrument?.close();
  }
}

// Creates the pictures of a lesson by their kind.

/** @param {any} prediction the user's prediction, for a curve */
export function makePicture(picture, prediction) {
  if (picture.curve) return new CurvePicture(picture, prediction);
  if (picture.bars) return new BarsPicture(picture);
  if (picture.waterfall) return new WaterfallPicture(picture);
  return picture.instrument ? new InstrumentPicture(picture) : new NumberPicture(picture);
}
