// A curve drawn by the user: with the pointer, with arrow keys on each point, or as numbers.

import { el, svg } from "../shared/dom.js";
import { number } from "../shared/format.js";
import { collapsed } from "../shared/widgets.js";

export const NUM_POINTS = 9;
const WIDTH = 640;
const HEIGHT = 260;
const LEFT = 52;
const BOTTOM = 34;
const EDGE = 12;
const STEPS = 40;

// Keys: the mean distance of a drawn curve from the measured one, as a fraction of the axis.
/** @type {[number, string][]} */
const CLOSENESS = [
  [0.06, "Very close"],
  [0.15, "The right shape"],
  [Infinity, "A different shape"],
];

/** How close a drawn curve is, by its mean distance as a fraction of the axis. @param {number} share */
export function closeness(share) {
  return CLOSENESS.find(([most]) => share < most)?.[1] ?? "";
}

export class DrawnCurve {
  /**
   * @param {{ low: number, high: number, until: number, curve: string, axisText: string }} question
   * @param {number[] | null} values the values drawn earlier
   * @param {(values: number[]) => void} onChange
   */
  constructor(question, values, onChange) {
    this.question = question;
    this.onChange = onChange;
    const middle = (question.low + question.high) / 2;
    this.values = values?.length === NUM_POINTS ? [...values] : Array(NUM_POINTS).fill(middle);
    this.isDrawn = values !== null;
    this.path = svg("polyline", { class: "ddp-drawn-line" });
    this.points = this.values.map((_, index) => this.point(index));
    this.picture = svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        class: "ddp-drawn",
        role: "group",
        "aria-label": `Draw the ${question.curve}`,
      },
      ...this.frame(),
      this.path,
      ...this.points,
    );
    this.picture.addEventListener("pointerdown", (event) => this.begin(event));
    this.fields = this.values.map((_, index) => this.field(index));
    const labels = this.fields.map((field, index) =>
      el("label", {}, el("span", {}, number(this.placeOf(index), 3)), field),
    );
    const numbers = collapsed("ddp-drawn-numbers", "As numbers", el("div", {}, labels));
    this.element = el("div", { class: "ddp-drawn-box" }, this.picture, numbers);
    this.show();
  }

  /** Disables all changes. */
  lock() {
    this.isLocked = true;
    for (const point of this.points) {
      point.setAttribute("aria-disabled", "true");
      point.setAttribute("tabindex", "-1");
    }
    for (const field of this.fields) field.disabled = true;
    this.picture.classList.add("ddp-drawn-locked");
  }

  /** The position of a point on the axis. */
  placeOf(index) {
    return (index / (NUM_POINTS - 1)) * this.question.until;
  }

  x(index) {
    return LEFT + (index / (NUM_POINTS - 1)) * (WIDTH - LEFT - EDGE);
  }

  y(value) {
    const { low, high } = this.question;
    return EDGE + ((high - value) / (high - low)) * (HEIGHT - BOTTOM - EDGE);
  }

  frame() {
    const { low, high, axisText, curve } = this.question;
    const bottom = this.y(low);
    const ticks = [0, 1, 2, 3, 4].map((part) => low + (part / 4) * (high - low));
    return [
      ...ticks.flatMap((value) => [
        svg("line", { x1: LEFT, x2: WIDTH - EDGE, y1: this.y(value), y2: this.y(value), class: "ddp-drawn-grid" }),
        svg("text", { x: LEFT - 8, y: this.y(value) + 4, "text-anchor": "end" }, number(value, 2)),
      ]),
      ...[0, 4, 8].map((index) =>
        svg("text", { x: this.x(index), y: bottom + 16, "text-anchor": index === 8 ? "end" : "middle" }, number(this.placeOf(index), 3)),
      ),
      svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, axisText),
      svg("text", { x: 12, y: HEIGHT / 2 - 10, "text-anchor": "middle", transform: `rotate(-90 12 ${HEIGHT / 2 - 10})` }, curve),
    ]; // prettier-ignore
  }

  point(index) {
    const { low, high, curve, axisText } = this.question;
    const point = svg("circle", {
      r: 8,
      class: "ddp-drawn-point",
      role: "slider",
      tabindex: 0,
      "aria-label": `${curve} at ${axisText} ${number(this.placeOf(index), 3)}`,
      "aria-valuemin": low,
      "aria-valuemax": high,
    });
    point.addEventListener("keydown", (event) => this.pressed(event, index));
    return point;
  }

  field(index) {
    const { low, high, curve, axisText } = this.question;
    const field = el("input", {
      type: "number",
      min: low,
      max: high,
      step: "any",
      "aria-label": `${curve} at ${axisText} ${number(this.placeOf(index), 3)}`,
    });
    field.addEventListener("change", () => {
      const value = field.valueAsNumber;
      if (Number.isFinite(value)) this.set(index, value);
      else this.show();
    });
    return field;
  }

  pressed(event, index) {
    const { low, high } = this.question;
    const step = (high - low) / STEPS;
    const value = this.values[index];
    /** @type {Record<string, number>} */
    const valueByKey = {
      ArrowUp: value + step,
      ArrowRight: value + step,
      ArrowDown: value - step,
      ArrowLeft: value - step,
      PageUp: value + 5 * step,
      PageDown: value - 5 * step,
      Home: low,
      End: high,
    };
    if (this.isLocked || !(event.key in valueByKey)) return;
    event.preventDefault();
    this.set(index, valueByKey[event.key]);
  }

  begin(event) {
    if (this.isLocked) return;
    event.preventDefault();
    this.picture.setPointerCapture(event.pointerId);
    let last = this.follow(event, null);
    const move = (moved) => (last = this.follow(moved, last));
    const end = () => {
      this.picture.removeEventListener("pointermove", move);
      this.picture.removeEventListener("pointerup", end);
      this.picture.removeEventListener("pointercancel", end);
    };
    this.picture.addEventListener("pointermove", move);
    this.picture.addEventListener("pointerup", end);
    this.picture.addEventListener("pointercancel", end);
  }

  /**
   * Moves the nearest point, and the points passed since the last event, to the pointer; returns its
   * position.
   */
  follow(event, last) {
    const { low, high } = this.question;
    const box = this.picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const y = ((event.clientY - box.top) / box.height) * HEIGHT;
    const position = Math.min(Math.max((x - LEFT) / (WIDTH - LEFT - EDGE), 0), 1) * (NUM_POINTS - 1);
    const value = high - ((y - EDGE) / (HEIGHT - BOTTOM - EDGE)) * (high - low);
    this.set(Math.round(position), value);
    if (last) {
      const [from, to] = [Math.min(last.place, position), Math.max(last.place, position)];
      for (let index = Math.ceil(from); index <= Math.floor(to); index += 1) {
        const share = position === last.place ? 1 : (index - last.place) / (position - last.place);
        this.set(index, last.value + share * (value - last.value));
      }
    }
    return { place: position, value };
  }

  set(index, value) {
    const { low, high } = this.question;
    this.values[index] = Math.min(Math.max(value, low), high);
    this.isDrawn = true;
    this.show();
    this.onChange([...this.values]);
  }

  show() {
    this.path.setAttribute(
      "points",
      this.values.map((value, index) => `${this.x(index)},${this.y(value)}`).join(" "),
    );
    this.values.forEach((value, index) => {
      const point = this.points[index];
      point.setAttribute("cx", String(this.x(index)));
      point.setAttribute("cy", String(this.y(value)));
      point.setAttribute("aria-valuenow", String(Number(value.toPrecision(3))));
      this.fields[index].value = String(Number(value.toPrecision(3)));
    });
  }
}
