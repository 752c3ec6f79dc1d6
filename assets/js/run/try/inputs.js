// The inputs of a model that is tried: an image, a row of a table, a text.

import { el, setText } from "../../shared/dom.js";
import { number, percent } from "../../shared/format.js";
import { buttonRow, collapsed, optionsOf, paragraph, textButton } from "../../shared/widgets.js";

/** Controls with a label before them. */
export function option(label, ...controls) {
  return el("label", { class: "ddp-try-option" }, el("span", {}, label), controls);
}

/**
 * A labelled slider whose value is written next to it; `onInput(value)` is called when it moves.
 * @param {(value: number) => string} text
 */
export function slider(label, { value, ...range }, text, onInput = (_value) => {}) {
  const shown = el("output", {}, text(value));
  const oninput = () => {
    setText(shown, text(input.valueAsNumber));
    onInput(input.valueAsNumber);
  };
  const input = el("input", { type: "range", ...range, value, oninput });
  return { input, element: option(label, input, shown) };
}

/** The step, to the right and upwards, of the key of an event; undefined for other keys. */
function arrowOf({ key }) {
  return { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[key];
}

const clip = (share) => Math.min(1, Math.max(0, share));

// The input of an image model: draw with a pointer, a finger or the keyboard; or choose, drop, paste or photograph an image.

const SIDE = 280; // pixels of the canvas
const PEN_SHARE = 0.09; // width of the pen as a share of the canvas
const KEY_STEP = 10;
const MOST_PIXELS = 512; // of the long side of a file that is sent
const CAMERA = "Camera";
const DOUBLE_CLICK_MS = 400;
const HOW_TO_DRAW =
  "Drawing area. Draw with a pointer or a finger. Keyboard: the arrow keys move the pen, Space lowers and lifts it, Delete clears.";

class DrawingInput {
  /** `onInput` is called after each change; `input()` then returns what to send, or null for nothing. */
  constructor(about, onInput) {
    this.onInput = onInput;
    const { shape, background = 0, largest = 255 } = about.input;
    const [channels, height, width] = shape;
    // Objects on a dark ground are drawn in white, all others in black.
    this.isDark = background < largest / 2;
    this.file = null;
    this.variation = {};
    this.isEmpty = true;
    this.pen = null;
    this.keyPen = { x: SIDE / 2, y: SIDE / 2, isDown: false };
    const ratio = width / height;
    this.width = Math.round(ratio >= 1 ? SIDE : SIDE * ratio);
    this.height = Math.round(ratio >= 1 ? SIDE / ratio : SIDE);
    this.canvas = el("canvas", {
      class: "ddp-try-canvas",
      width: this.width,
      height: this.height,
      tabindex: 0,
      role: "img",
      "aria-label": HOW_TO_DRAW,
    });
    this.canvas.style.aspectRatio = `${this.width} / ${this.height}`;
    this.cursor = el("span", { class: "ddp-try-pen", hidden: true });
    this.paper = el("div", { class: "ddp-try-paper" }, this.canvas, this.cursor);
    this.text = el("p", { class: "ddp-hint", role: "status" });
    this.picker = el("input", {
      type: "file",
      accept: "image/*",
      class: "ddp-unseen",
      tabindex: -1,
      "aria-label": "Image file",
      onchange: () => this.take(this.picker.files?.[0] ?? null),
    });
    const choose = textButton("Choose an image …", () => this.choose(), "small");
    this.video = null;
    this.camera = textButton(CAMERA, () => this.useCamera(), "small");
    const clear = textButton("Clear", () => this.clear(), "small");
    this.variations = this.buildVariations(width);
    const colours = channels === 1 ? "grey" : "coloured";
    this.element = el(
      "div",
      { class: "ddp-try-drawing" },
      this.paper,
      paragraph(
        "hint",
        `Draw here, or choose, drop, paste or photograph an image. It becomes ${colours}, ${width} × ${height} pixels.`,
      ),
      buttonRow(clear, choose, this.camera, this.picker),
      this.text,
      this.variations,
    );
    this.listen();
    this.wipe();
  }

  /** Sliders that change the prepared image: does the answer stay? @param {number} width pixels */
  buildVariations(width) {
    const noun = (pixels) => `${number(pixels, 2)} pixels`;
    /** @type {[string, object, (value: number) => string][]} */
    const sliders = [
      ["rotate", { min: -180, max: 180, step: 5 }, (value) => `${value}°`],
      ["shift", { min: -0.5, max: 0.5, step: 0.05 }, (value) => noun(value * width)],
      ["noise", { min: 0, max: 1, step: 0.05 }, (value) => percent(value, 0)],
    ];
    const made = sliders.map(([name, range, text]) =>
      slider(name, { ...range, value: 0 }, text, (value) => {
        this.variation[name] = value;
        this.onInput();
      }),
    );
    return collapsed("ddp-try-fold", "Change it a little", made);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pen = this.place(event);
      this.line(this.pen, this.pen);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.pen) return;
      for (const each of event.getCoalescedEvents?.() ?? [event]) {
        const next = this.place(each);
        this.line(this.pen, next);
        this.pen = next;
      }
    });
    const lift = () => {
      this.pen = null;
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.showCursor());
    canvas.addEventListener("blur", () => {
      this.cursor.hidden = true;
    });
    this.element.addEventListener("dragover", (event) => event.preventDefault());
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event.dataTransfer?.files?.[0] ?? null);
    });
    // Anywhere but in a text field: nobody focuses the drawing before pasting into it.
    document.addEventListener("paste", ({ target, clipboardData }) => {
      const isText = target instanceof Element && target.closest("input, textarea, [contenteditable]");
      const [file] = clipboardData?.files ?? [];
      if (this.element.isConnected && !isText && file?.type.startsWith("image/")) this.take(file);
    });
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) / box.width) * this.width,
      y: ((event.clientY - box.top) / box.height) * this.height,
    };
  }

  key(event) {
    const move = arrowOf(event);
    if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else if (event.key === " ") {
      this.keyPen.isDown = !this.keyPen.isDown;
      if (this.keyPen.isDown) this.line(this.keyPen, this.keyPen);
    } else if (move) {
      const { x, y } = this.keyPen;
      this.keyPen.x = Math.min(this.width, Math.max(0, x + KEY_STEP * move[0]));
      this.keyPen.y = Math.min(this.height, Math.max(0, y - KEY_STEP * move[1]));
      if (this.keyPen.isDown) this.line({ x, y }, this.keyPen);
    } else return;
    event.preventDefault();
    this.showCursor();
    setText(this.text, this.keyPen.isDown ? "The pen is down." : "The pen is up. Space lowers it.");
  }

  showCursor() {
    this.cursor.hidden = !this.canvas.matches(":focus-visible");
    this.cursor.style.left = `${(100 * this.keyPen.x) / this.width}%`;
    this.cursor.style.top = `${(100 * this.keyPen.y) / this.height}%`;
  }

  line(from, to) {
    if (this.file) this.wipe();
    const context = this.canvas.getContext("2d");
    context.strokeStyle = this.isDark ? "#fff" : "#000";
    context.lineWidth = SIDE * PEN_SHARE;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x + 0.01, to.y);
    context.stroke();
    this.isEmpty = false;
    this.onInput();
  }

  wipe() {
    const context = this.canvas.getContext("2d");
    context.fillStyle = this.isDark ? "#000" : "#fff";
    context.fillRect(0, 0, this.width, this.height);
    this.file = null;
    this.isEmpty = true;
  }

  /** Opens the file dialog, or with `capture` the camera of a phone. */
  choose(capture = "") {
    this.picker.toggleAttribute("capture", capture !== "");
    if (capture) this.picker.setAttribute("capture", capture);
    this.picker.click();
  }

  /** Shows the camera over the drawing. Browsers allow it only on https and localhost. */
  async openCamera() {
    if (!navigator.mediaDevices) {
      this.choose("environment");
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      setText(this.text, `The camera cannot be used: ${error.message || error.name}.`);
      return;
    }
    this.closeCamera();
    this.video = el("video", { class: "ddp-try-video", "aria-label": "The camera's picture" });
    Object.assign(this.video, { srcObject: stream, muted: true, playsInline: true });
    this.paper.append(this.video);
    setText(this.camera, "Take the picture");
    try {
      await this.video.play();
    } catch (error) {
      if (this.video) setText(this.text, `The camera shows no picture: ${error.message || error.name}.`);
      this.closeCamera();
    }
  }

  /** Opens the camera, or takes its picture. The second click of a double click changes nothing. */
  async useCamera() {
    const { camera, video } = this;
    if (camera.getAttribute("aria-disabled") === "true") return;
    camera.setAttribute("aria-disabled", "true");
    try {
      await (video ? this.take(video) : this.openCamera());
    } finally {
      const wait = this.video === video ? 0 : DOUBLE_CLICK_MS;
      window.setTimeout(() => camera.removeAttribute("aria-disabled"), wait);
    }
  }

  closeCamera() {
    if (!this.video) return;
    for (const track of this.video.srcObject.getTracks()) track.stop();
    this.video.remove();
    this.video = null;
    setText(this.camera, CAMERA);
  }

  clear() {
    this.closeCamera();
    this.wipe();
    this.picker.value = "";
    setText(this.text, "");
    this.onInput();
  }

  /** Shows an image file or the picture of a camera, and sends it as it is, only smaller. */
  async take(file) {
    if (!file) return;
    let picture;
    try {
      picture = await createImageBitmap(file);
    } catch {
      setText(this.text, `${file.name || "This"} is not an image that this browser can read.`);
      return;
    }
    this.closeCamera();
    const scale = Math.min(1, MOST_PIXELS / Math.max(picture.width, picture.height));
    const small = el("canvas", {
      width: Math.max(1, Math.round(picture.width * scale)),
      height: Math.max(1, Math.round(picture.height * scale)),
    });
    const paper = small.getContext("2d");
    paper.fillStyle = "#fff"; // training converts transparent pixels to white, too
    paper.fillRect(0, 0, small.width, small.height);
    paper.drawImage(picture, 0, 0, small.width, small.height);
    this.wipe();
    const fit = Math.min(this.width / small.width, this.height / small.height);
    const size = [small.width * fit, small.height * fit];
    const context = this.canvas.getContext("2d");
    context.drawImage(small, (this.width - size[0]) / 2, (this.height - size[1]) / 2, size[0], size[1]);
    this.file = small.toDataURL("image/jpeg", 0.95);
    this.isEmpty = false;
    setText(this.text, file.name ? `Showing ${file.name}.` : "");
    this.onInput();
  }

  input() {
    if (this.isEmpty) return null;
    const image = this.file ? { image: this.file } : { drawing: this.canvas.toDataURL("image/png") };
    return { ...image, ...this.variation };
  }
}

// The inputs of models for tables and texts: one field per column, a point on a plane, a text.

const STEPS = 200; // positions of a slider
const MARGIN = 0.1; // a slider reaches beyond the range of the data by this share
const KEY_SHARE = 0.02;

/** A number rounded to four significant digits, as text. */
const short = (value) => String(Number(value.toPrecision(4)));

class RowInput {
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
      this.plane ?? null,
      el("div", { class: "ddp-try-fields" }, this.fields),
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
    const pairs = values.map((value) => [value, value]);
    if (hasOther) pairs.push([" another ", "another"]);
    if (hasMissing) pairs.push(["", "empty"]);
    this.select = el("select", { class: "ddp-wide", onchange: onInput }, optionsOf(pairs));
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
    const range = { min: 0, max: STEPS, step: 1, "aria-label": `${name}, slider`, tabindex: -1 };
    this.slider = el("input", { type: "range", ...range });
    this.set((low + high) / 2);
    this.box.addEventListener("input", () => {
      this.slider.value = String(STEPS * this.share());
      onInput();
    });
    this.slider.addEventListener("input", () => {
      this.box.value = short(this.start + (Number(this.slider.value) / STEPS) * (this.end - this.start));
      onInput();
    });
    const text = el("span", { class: "ddp-hint" }, hint);
    this.element = el("div", { class: "ddp-try-field" }, el("span", {}, name), this.box, this.slider, text);
  }

  /** The position of the value between both ends of the slider, 0 to 1. */
  share() {
    const share = (Number(this.box.value) - this.start) / (this.end - this.start);
    return Number.isFinite(share) ? clip(share) : 0;
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
    this.element = el("div", {}, this.area, paragraph("hint", hint));
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
      const by = arrowOf(event);
      if (!by) return;
      event.preventDefault();
      this.moveTo(this.x.share() + KEY_SHARE * by[0], this.y.share() + KEY_SHARE * by[1]);
    });
    this.draw();
  }

  moveTo(x, y) {
    const set = (field, share) => field.set(field.start + clip(share) * (field.end - field.start));
    set(this.x, x);
    set(this.y, y);
    this.draw();
    this.onInput();
  }

  draw() {
    this.point.style.left = `${100 * this.x.share()}%`;
    this.point.style.bottom = `${100 * this.y.share()}%`;
  }
}

class TextInput {
  constructor(about, onInput) {
    this.area = el("textarea", {
      oninput: onInput,
      class: "ddp-try-input ddp-try-text",
      rows: 5,
      dir: "auto",
      maxlength: 20_000,
      "aria-label": "Text",
      placeholder: `Type or paste a text. The model reads its first ${about.input.shape[0]} ${unit(about)}.`,
    });
    this.element = el("div", {}, this.area);
  }

  input() {
    return this.area.value.trim() ? { text: this.area.value } : null;
  }
}

/** The inputs by the kind of a model; each is made with the model's description and a function that it calls. */
export const INPUTS = { image: DrawingInput, table: RowInput, text: TextInput };

/** The tokens of a model, as text. */
function unit({ input }) {
  if (input.tokenizer.kind === "words") return "words and marks";
  return input.tokenizer.kind === "pretrained" ? "tokens (pieces of words)" : "characters";
}
