// The inputs of models for tables and texts: one field per column, a point on a plane, a text.

import { el } from "../../shared/dom.js";
import { number } from "../../shared/format.js";

const STEPS = 200; // positions of a slider
const MARGIN = 0.1; // a slider reaches beyond the range of the data by this share
const KEY_SHARE = 0.02;

/** A number rounded to four significant digits, as text. */
const short = (value) => String(Number(value.toPrecision(4)));

export class RowInput {
  constructor(about, onInput) {
    this.onInput = onInput;
    const { columns, low, high } = about.input;
    let place = 0;
    this.fields = columns.map((column) => {
      const field =
        column.values.length > 0
          ? new Choice(column, onInput)
          : new NumberField(column, [low?.[place] ?? -1, high?.[place] ?? 1], onInput);
      place += column.values.length > 0 ? column.values.length + column.has_other : 1;
      place += column.has_missing ? 1 : 0;
      return field;
    });
    const isPlane = this.fields.length === 2 && this.fields.every((field) => field instanceof NumberField);
    this.plane = isPlane ? new Plane(this.fields, onInput) : null;
    this.element = el(
      "div",
      { class: "ddp-try-row" },
      this.plane?.element ?? null,
      el(
        "div",
        { class: "ddp-try-fields" },
        this.fields.map((field) => field.element),
      ),
    );
  }

  input() {
    this.plane?.draw();
    return { row: Object.fromEntries(this.fields.map((field) => [field.name, field.value()])) };
  }
}

class Choice {
  constructor({ name, values, has_other: hasOther, has_missing: hasMissing }, onInput) {
    this.name = name;
    const others = [hasOther ? el("option", { value: " another " }, "another") : null];
    others.push(hasMissing ? el("option", { value: "" }, "empty") : null);
    this.select = el(
      "select",
      { class: "ddp-wide" },
      values.map((value) => el("option", { value }, value)),
    );
    this.select.append(...others.filter((option) => option !== null));
    this.select.addEventListener("change", onInput);
    this.element = el("label", { class: "ddp-try-field" }, el("span", {}, name), this.select);
  }

  value() {
    return this.select.value;
  }
}

class NumberField {
  constructor({ name, has_missing: hasMissing }, [low, high], onInput) {
    this.name = name;
    this.low = low;
    this.high = high;
    const margin = (high - low || 1) * MARGIN;
    this.start = low - margin;
    this.end = high + margin;
    const hint = `${number(low)} to ${number(high)} in the data${hasMissing ? "; may be empty" : ""}`;
    this.box = el("input", { type: "number", step: "any", class: "ddp-try-input", "aria-label": name });
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: STEPS,
      step: 1,
      "aria-label": `${name}, slider`,
      tabindex: -1,
    });
    this.set((low + high) / 2);
    this.box.addEventListener("input", () => {
      this.slider.value = String(STEPS * this.share());
      onInput();
    });
    this.slider.addEventListener("input", () => {
      this.box.value = short(this.start + (Number(this.slider.value) / STEPS) * (this.end - this.start));
      onInput();
    });
    this.element = el(
      "div",
      { class: "ddp-try-field" },
      el("span", {}, name),
      this.box,
      this.slider,
      el("span", { class: "ddp-hint" }, hint),
    );
  }

  /** The position of the value between both ends of the slider, 0 to 1. */
  share() {
    const share = (Number(this.box.value) - this.start) / (this.end - this.start);
    return Math.min(1, Math.max(0, Number.isFinite(share) ? share : 0));
  }

  set(value) {
    this.box.value = short(value);
    this.slider.value = String(STEPS * this.share());
  }

  value() {
    return this.box.value === "" ? "" : Number(this.box.value);
  }
}

/** A plane on which a point is moved, for two columns of numbers. */
class Plane {
  constructor([x, y], onInput) {
    this.x = x;
    this.y = y;
    this.onInput = onInput;
    this.point = el("span", { class: "ddp-try-point" });
    this.area = el(
      "div",
      {
        class: "ddp-try-plane",
        tabindex: 0,
        role: "application",
        "aria-label": `The plane of ${x.name} and ${y.name}. The arrow keys move the point.`,
      },
      this.point,
      el("span", { class: "ddp-try-x" }, x.name),
      el("span", { class: "ddp-try-y" }, y.name),
    );
    const hint = "Move the point: click, drag, or use the arrow keys.";
    this.element = el("div", {}, this.area, el("p", { class: "ddp-hint" }, hint));
    const move = (event) => {
      const box = this.area.getBoundingClientRect();
      this.moveTo((event.clientX - box.left) / box.width, 1 - (event.clientY - box.top) / box.height);
    };
    this.area.addEventListener("pointerdown", (event) => {
      this.area.setPointerCapture(event.pointerId);
      move(event);
    });
    this.area.addEventListener("pointermove", (event) => {
      if (event.buttons) move(event);
    });
    this.area.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      const by = moves[event.key];
      if (!by) return;
      event.preventDefault();
      this.moveTo(this.x.share() + KEY_SHARE * by[0], this.y.share() + KEY_SHARE * by[1]);
    });
    this.draw();
  }

  moveTo(x, y) {
    for (const [field, share] of [
      [this.x, x],
      [this.y, y],
    ]) {
      field.set(field.start + Math.min(1, Math.max(0, share)) * (field.end - field.start));
    }
    this.draw();
    this.onInput();
  }

  draw() {
    this.point.style.left = `${100 * this.x.share()}%`;
    this.point.style.bottom = `${100 * this.y.share()}%`;
  }
}

export class TextInput {
  constructor(about, onInput) {
    this.area = el("textarea", {
      class: "ddp-try-input ddp-try-text",
      rows: 5,
      dir: "auto",
      maxlength: 20_000,
      "aria-label": "Text",
      placeholder: `Type or paste a text. The model reads its first ${about.input.shape[0]} ${unit(about)}.`,
    });
    this.area.addEventListener("input", onInput);
    this.element = el("div", {}, this.area);
  }

  input() {
    return this.area.value.trim() ? { text: this.area.value } : null;
  }
}

/** The tokens of a model, as text. */
export function unit({ input }) {
  if (input.tokenizer.kind === "words") return "words and marks";
  return input.tokenizer.kind === "pretrained" ? "tokens (pieces of words)" : "characters";
}
