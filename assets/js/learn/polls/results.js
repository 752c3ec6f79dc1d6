// The predictions of a class: a bar per choice, or all drawn curves in one picture.

import { el, setText, show, svg } from "../../shared/dom.js";
import { count, number } from "../../shared/format.js";
import { AXES } from "../../runs/compare/figure.js";
import { DrawnCurve } from "../drawn_curve.js";
import { inlines } from "../text.js";
import { medians } from "./medians.js";

/** Returns the picture of a question's answers, with `element` and `update(results, right)`. */
export function resultsOf(question) {
  return question.kind === "curve" ? new CurveHeap(question) : new ChoiceBars(question);
}

class ChoiceBars {
  constructor({ choices }) {
    this.rows = choices.map((words) => {
      const bar = el("span", { class: "ddp-poll-bar", "aria-hidden": "true" });
      const value = el("strong", { class: "ddp-poll-count" });
      const mark = el("span", { class: "ddp-outcome", hidden: true }, "what happened");
      const about = el("span", { class: "ddp-poll-choice" }, el("span", {}, inlines(words)), mark);
      const element = el("li", {}, about, el("span", { class: "ddp-poll-track" }, bar), value);
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
    const curve = question.curve === "loss" ? "training loss" : question.curve.replace("metric:", "validation ");
    this.about = { ...question, curve, axisWords: AXES[question.axis] };
    this.frame = new DrawnCurve(this.about, null, () => {});
    this.curves = svg("g", { class: "ddp-poll-curves" });
    this.middle = svg("polyline", { class: "ddp-drawn-line" });
    this.words = el("p", { class: "ddp-hint" });
    this.element = el(
      "div",
      { class: "ddp-drawn-box" },
      svg("svg", { viewBox: "0 0 640 260", class: "ddp-drawn ddp-drawn-locked", role: "img", "aria-label": `All predictions of the ${curve}` }, ...this.frame.frame(), this.curves, this.middle),
      this.words,
    );
  } // prettier-ignore

  /** @param {{ curves: number[][] }} results */
  update({ curves }) {
    this.curves.replaceChildren(...curves.map((values) => svg("polyline", { points: this.points(values) })));
    const middle = medians(curves);
    this.middle.setAttribute("points", this.points(middle));
    const last = middle.at(-1);
    const ends = last === undefined ? "" : `, the last point at ${number(last, 3)}`;
    setText(this.words, curves.length > 0 ? `The thick line is the median of ${count(curves.length)}${ends}.` : "");
  } // prettier-ignore

  points(values) {
    return values.map((value, index) => `${this.frame.x(index)},${this.frame.y(value)}`).join(" ");
  }
}
