// What a poll shows: the predictions of the class, and its runs.

import { el, setText, show, svg, section } from "../../shared/dom.js";
import { count, number } from "../../shared/format.js";
import { describeDrawing } from "../questions.js";
import { DrawnCurve } from "../drawn_curve.js";
import { inlines } from "../text.js";
import { chartColors } from "../../shared/theme.js";
import { LessonRun, chartStyles } from "../lesson_run.js";
import { paragraph } from "../../shared/widgets.js";
import { CurvePicture, makePicture } from "../pictures.js";

/**
 * The median at each point; empty without curves.
 * @param {number[][]} curves
 */
export function medians(curves) {
  if (curves.length === 0) return [];
  return curves[0].map((_, index) => {
    const values = curves.map((curve) => curve[index]).toSorted((one, other) => one - other);
    const half = values.length / 2;
    return Number.isInteger(half) ? (values[half - 1] + values[half]) / 2 : values[Math.floor(half)];
  });
}

// The predictions of a class: a bar per choice, or all drawn curves in one picture.

/** Returns the picture of a question's answers, with `element` and `update(results, right)`. */
export function resultsOf(question) {
  return question.kind === "curve" ? new CurveHeap(question) : new ChoiceBars(question);
}

class ChoiceBars {
  constructor({ choices }) {
    this.rows = choices.map((text) => {
      const bar = el("span", { class: "ddp-poll-bar", "aria-hidden": "true" });
      const value = el("strong", { class: "ddp-poll-count" });
      const mark = el("span", { class: "ddp-outcome", hidden: true }, "what happened");
      const label = el("span", { class: "ddp-poll-choice" }, el("span", {}, inlines(text)), mark);
      const element = el("li", {}, label, el("span", { class: "ddp-poll-track" }, bar), value);
      return { element, bar, value, mark };
    });
    this.element = el(
      "ol",
      { class: "ddp-poll-bars" },
      this.rows.map(({ element }) => element),
    );
  }

  /**
   * @param {{ counts: number[] }} results
   * @param {number | undefined} right the index of the choice that happened, once it may be shown
   */
  update({ counts }, right) {
    const all = counts.reduce((sum, each) => sum + each, 0);
    counts.forEach((each, index) => {
      const { element, bar, value, mark } = this.rows[index];
      const share = all > 0 ? each / all : 0;
      bar.style.width = `${100 * share}%`;
      setText(value, all > 0 ? `${count(each)} · ${number(100 * share, 2)}%` : "0");
      show(mark, index === right);
      const outcome = index === right ? "right" : "other";
      element.dataset.outcome = right === undefined ? "" : outcome;
    });
  }
}

class CurveHeap {
  constructor(question) {
    const drawing = describeDrawing(question);
    this.frame = new DrawnCurve(drawing, null, () => {});
    this.curves = svg("g", { class: "ddp-poll-curves" });
    this.middle = svg("polyline", { class: "ddp-drawn-line" });
    this.text = paragraph("hint");
    this.element = el(
      "div",
      { class: "ddp-drawn-box" },
      svg("svg", { viewBox: "0 0 640 260", class: "ddp-drawn ddp-drawn-locked", role: "img", "aria-label": `All predictions of the ${drawing.curve}` }, ...this.frame.frame(), this.curves, this.middle),
      this.text,
    );
  } // prettier-ignore

  /** @param {{ curves: number[][] }} results */
  update({ curves }) {
    this.curves.replaceChildren(...curves.map((values) => svg("polyline", { points: this.points(values) })));
    const middle = medians(curves);
    this.middle.setAttribute("points", this.points(middle));
    const last = middle.at(-1);
    const ends = last === undefined ? "" : `, the last point at ${number(last, 3)}`;
    setText(this.text, curves.length > 0 ? `The thick line is the median of ${count(curves.length)}${ends}.` : "");
  } // prettier-ignore

  points(values) {
    return values.map((value, index) => `${this.frame.x(index)},${this.frame.y(value)}`).join(" ");
  }
}

// The runs of a poll, with the class's predictions drawn over the measured curves.

export class PollRuns {
  constructor(lesson, question) {
    // Without commands: the server sends the lesson's commands to the runs of a poll.
    this.runs = lesson.runs.map(
      ({ name, expect }, index) => new LessonRun(name, index, null, { expect, views: chartStyles(lesson) }),
    );
    this.pictures = lesson.pictures.map((picture) =>
      picture.curve ? new HeapPicture(picture, question) : makePicture(picture, null),
    );
    this.because = el("p", { class: "ddp-lesson-because", hidden: true });
    this.element = section(
      "The runs",
      "poll-runs",
      el("ul", { class: "ddp-lesson-runs" }, this.runs),
      this.because,
      el("div", { class: "ddp-lesson-pictures" }, this.pictures),
    );
  }

  get isOver() {
    return this.runs.every((run) => run.isOver);
  }

  /** Follows the poll's runs; `results` are drawn over their curves. */
  take(runIds, results) {
    runIds.forEach((runId, index) => {
      if (this.runs[index] && this.runs[index].runId !== runId) this.runs[index].started(runId);
    });
    for (const picture of this.pictures) if (picture instanceof HeapPicture) picture.results = results;
    show(this.element, runIds.length > 0);
    this.redraw();
  }

  async read() {
    await Promise.all(this.runs.map((run) => run.read()));
    this.redraw();
  }

  /** Shows the explanation. */
  reveal({ because }) {
    this.because.replaceChildren(...inlines(because ?? []));
    show(this.because, Boolean(because?.length));
  }

  redraw() {
    if (this.element.hidden) return;
    for (const picture of this.pictures) picture.update(this.runs, this.isOver);
  }

  close() {
    for (const picture of this.pictures) picture.close?.();
  }
}

/** A chart with the predicted curves of a class. */
class HeapPicture extends CurvePicture {
  constructor(picture, question) {
    // No individual prediction here, only the question.
    super(picture, /** @type {any} */ ({ question }));
    this.results = null;
  }

  /** @override */
  expected() {
    const { question } = this.prediction;
    const isOfThis = question.curve === this.picture.curve && question.axis === this.picture.axis;
    const curves = this.results?.curves ?? [];
    if (!isOfThis || curves.length === 0) return null;
    // One trace for all curves, with gaps between them.
    const places = curves[0].map((_, index) => (index / (curves[0].length - 1)) * question.until);
    return {
      type: "scatter",
      mode: "lines",
      name: "predictions",
      x: curves.flatMap(() => [...places, null]),
      y: curves.flatMap((values) => [...values, null]),
      line: { color: chartColors().faint, width: 2, dash: "solid", shape: "linear" },
      opacity: 0.5,
      connectgaps: false,
    };
  }
}
