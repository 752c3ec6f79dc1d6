// The answer of a trained model: probabilities as bars, the preprocessed input, and the most similar validation samples.

import { el, makeButton, setText, show, showText } from "../../shared/dom.js";
import { capital, count, number, percent } from "../../shared/format.js";
import { paintImage } from "../sample/lists.js";
import { collapsed, makeTable, paragraph, scrollBox } from "../../shared/widgets.js";

export class Answer {
  constructor() {
    this.name = el("h3", { hidden: true });
    this.title = el("p", { class: "ddp-try-says", role: "status" });
    this.bars = el("ol", { class: "ddp-try-bars" });
    this.more = paragraph("hint");
    this.seen = el("div", { class: "ddp-try-seen" });
    this.element = el("div", {}, this.name, this.title, this.bars, this.more);
  }

  clear(text) {
    show(this.name, false);
    setText(this.title, text);
    this.bars.replaceChildren();
    setText(this.more, "");
    this.seen.replaceChildren();
  }

  /** `name` is that of the checkpoint or run, and `other` the answer next to it, if two are compared. */
  update(found, name = "", other = null) {
    showText(this.name, name);
    if (found.value === undefined) this.updateClasses(found, other);
    else {
      this.bars.replaceChildren();
      this.title.replaceChildren("The model predicts ", el("strong", {}, number(found.value)));
    }
    this.seen.replaceChildren(...seen(found.input));
  }

  updateClasses({ prediction, probabilities, num_classes: numClasses }, other) {
    const best = Math.max(...probabilities.map(({ probability }) => probability));
    this.title.replaceChildren("The model says ", el("strong", {}, prediction), ` (${percent(best)})`);
    this.bars.replaceChildren(
      ...probabilities.map(({ class_name: name, probability }) => {
        const bar = el("span", { class: "ddp-try-bar" });
        bar.style.setProperty("--share", probability.toFixed(4));
        const there = other?.probabilities?.find(({ class_name: each }) => each === name);
        if (there) {
          bar.append(el("i", { class: "ddp-try-mark", title: `next to it: ${percent(there.probability)}` }));
          bar.style.setProperty("--other", there.probability.toFixed(4));
        }
        return el(
          "li",
          { "data-best": String(probability === best) },
          el("span", { class: "ddp-try-class" }, name),
          bar,
          el("span", { class: "ddp-try-percent" }, percent(probability)),
        );
      }),
    );
    const most = `The ${probabilities.length} most probable of ${count(numClasses)} classes.`;
    setText(this.more, probabilities.length < numClasses ? most : "");
  }
}

/** A sentence about how two answers to the same input differ. */
export function difference(one, other) {
  if (one.value !== undefined || other.value !== undefined) {
    return `The two numbers differ by ${number(Math.abs(one.value - other.value))}.`;
  }
  const shares = new Map(other.probabilities.map((each) => [each.class_name, each.probability]));
  const common = one.probabilities.filter(({ class_name: name }) => shares.has(name));
  if (common.length === 0) return "The two models have no class in common.";
  const gap = (each) => Math.abs(each.probability - shares.get(each.class_name));
  const widest = common.reduce((found, each) => (gap(each) > gap(found) ? each : found));
  const verdict =
    one.prediction === other.prediction
      ? `Both say ${one.prediction}.`
      : `They disagree: ${one.prediction} and ${other.prediction}.`;
  const [left, right] = [widest.probability, shares.get(widest.class_name)].map((each) => percent(each));
  return `${verdict} The largest difference is at ${widest.class_name}: ${left} and ${right}. The line in each bar marks the other answer.`;
}

/** The input of the model after preprocessing. */
function seen(found) {
  const [picture, text] = pictureOfInput(found);
  return [el("h3", {}, "Input of the model"), picture, paragraph("hint", text)];
}

function pictureOfInput({ image, tokens, numbers, num_tokens: numTokens, max_tokens: maxTokens }) {
  if (image) return [canvasOf(image, "The input image of the model"), `${image.sides} pixels`];
  if (tokens) {
    const chips = tokens.map(({ text, is_known: isKnown }) =>
      el("span", { class: "ddp-try-token", "data-known": String(isKnown) }, isKnown ? text : "unknown"),
    );
    const text = `${count(numTokens)} of at most ${count(maxTokens)} tokens`;
    return [el("p", { class: "ddp-try-tokens", dir: "auto" }, chips), text];
  }
  const cells = numbers.map(({ name, value }) =>
    el("span", { class: "ddp-try-token" }, `${name}: ${number(value)}`),
  );
  const text = "Each number minus the mean of its column, in standard deviations.";
  return [el("p", { class: "ddp-try-tokens" }, cells), text];
}

function canvasOf(image, label) {
  const canvas = el("canvas", { role: "img", "aria-label": label });
  paintImage(canvas, image);
  return canvas;
}

/** The fold with the most similar validation samples. It is filled only while it is open. */
export class Nearest {
  constructor(onOpen) {
    this.text = paragraph("hint");
    this.list = el("div", { class: "ddp-try-nearest" });
    this.element = collapsed("ddp-try-fold", "Similar validation samples", this.text, this.list);
    this.element.addEventListener("toggle", () => this.element.open && onOpen());
  }

  get isOpen() {
    return this.element.open;
  }

  update(found) {
    const { num_compared: num } = found;
    const text = `Of ${count(num)} validation samples, those that the model finds most alike, by the numbers that enter its last layer.`;
    setText(this.text, text);
    this.list.replaceChildren(...samples(found));
  }

  fail(text) {
    setText(this.text, text);
    this.list.replaceChildren();
  }
}

/** Elements that show validation samples with their labels: images, texts, or the rows of a table. */
export function samples({ images, texts, table }) {
  if (images) return images.map(pictureOf);
  if (texts) return texts.map(textOf);
  return table ? [tableOf(table)] : [];
}

function pictureOf(image) {
  const canvas = canvasOf(image, `Image of ${image.label}`);
  return el("figure", {}, canvas, el("figcaption", {}, String(image.label)));
}

function textOf({ text, label }) {
  return el("p", { class: "ddp-try-similar", dir: "auto" }, el("strong", {}, String(label)), ` ${text}`);
}

function tableOf({ columns, rows }) {
  const body = rows.map(({ label, inputs }) =>
    el(
      "tr",
      {},
      [label, ...inputs].map((value) => el("td", {}, typeof value === "number" ? number(value) : value)),
    ),
  );
  return scrollBox("Similar validation rows", makeTable("ddp-table", ["label", ...columns], body));
}

/** One bar per checkpoint: how probable the class of the chosen one is in each; a click chooses it. */
export class History {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.text = paragraph("hint");
    this.bars = el("div", { class: "ddp-try-history" });
    this.element = el("div", { class: "ddp-try-past", hidden: true }, this.text, this.bars);
  }

  /** `answers` maps the step of each checkpoint to its answer, for the same input. */
  update(answers, steps, chosen) {
    const now = answers.get(chosen);
    const isKnown = steps.length > 1 && now !== undefined;
    show(this.element, isKnown);
    if (!isKnown) return;
    const name = now.prediction;
    const values = steps.map((step) => valueOf(answers.get(step), name));
    const known = values.filter((value) => value !== null);
    const low = name === undefined ? Math.min(...known) : 0;
    const high = name === undefined ? Math.max(...known) : 1;
    const format = (value) => (name === undefined ? number(value) : percent(value, 0));
    const what =
      name === undefined ? "The prediction for this input" : `How probable ${name} is for this input`;
    const ends = `from step ${count(steps[0])} to step ${count(steps.at(-1))}`;
    setText(this.text, `${what}, ${ends}. Click on a bar to choose that checkpoint.`);
    this.bars.replaceChildren(
      ...steps.map((step, index) => {
        const value = values[index];
        const answer = answers.get(step);
        const shown = value === null ? "not known yet" : format(value);
        const said = answer?.prediction === undefined ? "" : `, says ${answer.prediction}`;
        const text = `step ${count(step)}: ${shown}${said}`;
        const button = makeButton({
          "aria-pressed": String(step === chosen),
          "aria-label": capital(text),
          title: text,
          onclick: () => this.onChoose(step),
        });
        button.style.setProperty("--share", String(value === null ? 0 : (value - low) / (high - low || 1)));
        return button;
      }),
    );
  }
}

function valueOf(answer, name) {
  if (!answer) return null;
  if (answer.value !== undefined) return answer.value;
  return answer.probabilities.find(({ class_name: each }) => each === name)?.probability ?? 0;
}
