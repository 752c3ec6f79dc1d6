// The runs of a poll, with the class's predictions drawn over the measured curves.

import { el, section, show } from "../../shared/dom.js";
import { chartColors } from "../../shared/theme.js";
import { LessonRun, looksOf } from "../lesson_run.js";
import { CurvePicture } from "../pictures.js";
import { makePicture } from "../pictures/make.js";
import { inlines } from "../text.js";

export class PollRuns {
  /**
   * @param {any} lesson
   * @param {any} question
   * @param {(chart: any) => void} onChart called to draw a chart
   */
  constructor(lesson, question, onChart) {
    this.onChart = onChart;
    // Without commands: the server sends the lesson's commands to the runs of a poll.
    this.runs = lesson.runs.map(
      ({ name, expect }, index) => new LessonRun(name, index, null, { expect, looks: looksOf(lesson) }),
    );
    this.pictures = lesson.pictures.map((about) =>
      about.curve ? new HeapPicture(about, question, onChart) : makePicture(about, null, onChart),
    );
    this.because = el("p", { class: "ddp-lesson-because", hidden: true });
    this.element = section(
      "The runs",
      "poll-runs",
      el(
        "ul",
        { class: "ddp-lesson-runs" },
        this.runs.map((run) => run.element),
      ),
      this.because,
      el(
        "div",
        { class: "ddp-lesson-pictures" },
        this.pictures.map((picture) => picture.element),
      ),
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
    for (const picture of this.pictures) {
      picture.update(this.runs, this.isOver);
      if (picture.chart) this.onChart(picture.chart);
    }
  }

  close() {
    for (const picture of this.pictures) picture.close();
  }
}

/** A chart with the predicted curves of a class. */
class HeapPicture extends CurvePicture {
  constructor(about, question, onChart) {
    // No individual prediction here, only the question.
    super(about, /** @type {any} */ ({ about: question }), onChart);
    this.results = null;
  }

  /** @override */
  expected() {
    const { about } = this.prediction;
    const isOfThis = about.curve === this.about.curve && about.axis === this.about.axis;
    const curves = this.results?.curves ?? [];
    if (!isOfThis || curves.length === 0) return null;
    // One trace for all curves, with gaps between them.
    const places = curves[0].map((_, index) => (index / (curves[0].length - 1)) * about.until);
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
