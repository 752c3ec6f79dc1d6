// @ts-nocheck: the inputs of the kinds of models have no common type.
// A language model that continues a text, token by token.

import { el, setText, show, showText } from "../../shared/dom.js";
import { percent } from "../../shared/format.js";
import { buttonRow, optionsOf, paragraph, textButton } from "../../shared/widgets.js";
import { option, slider } from "./inputs.js";

const TOP_K = [5, 20];

export class Writer {
  /** `getSources` returns the models that write, one after the other: each a `model`, its `step` and a `name`. */
  constructor(about, getSources) {
    this.getSources = getSources;
    this.stopper = null;
    this.button = textButton("Write", () => (this.stopper ? this.stopper.abort() : this.write()), "main");
    this.texts = el("div", { class: "ddp-try-answers" }, textOf("The text of the model"));
    this.hasWritten = false;
    const hint =
      "The darker the background, the less probable the token. Hover over the text for the numbers.";
    this.failure = el("p", { class: "ddp-try-failure", role: "alert", hidden: true });
    const written = el("div", {}, this.texts, paragraph("hint", hint), this.failure);
    this.element = el("div", { class: "ddp-try-pair" }, this.buildOptions(about.output.num_classes), written);
  }

  buildOptions(numTokens) {
    this.prompt = el("textarea", {
      class: "ddp-try-input ddp-try-text",
      rows: 3,
      dir: "auto",
      maxlength: 2000,
      "aria-label": "Beginning of the text",
      placeholder: "Begin a text, or leave this empty.",
    });
    const tenths = (value) => value.toFixed(1);
    this.temperature = slider("temperature", { min: 0, max: 2, step: 0.1, value: 0.8 }, tenths);
    const tokens = (value) => `${value} tokens`;
    this.length = slider("length", { min: 20, max: 1000, step: 20, value: 200 }, tokens);
    const choices = [
      [0, `all ${numTokens} tokens`],
      [1, "the most probable one"],
      ...TOP_K.filter((k) => k <= numTokens).map((k) => [k, `the ${k} most probable`]),
    ];
    this.topK = el("select", {}, optionsOf(choices));
    this.seed = el("input", { type: "number", class: "ddp-try-input", min: 0, step: 1, value: 0 });
    return el(
      "div",
      { class: "ddp-try-options" },
      this.prompt,
      this.temperature,
      option("choose among", this.topK),
      this.length,
      option("seed", this.seed),
      buttonRow(this.button),
    );
  }

  async write() {
    const stopper = new AbortController();
    this.stopper = stopper;
    setText(this.button, "Stop");
    show(this.failure, false);
    this.hasWritten = true;
    const sources = this.getSources();
    const texts = sources.map(({ name }) => textOf(`The text of ${name}`));
    for (const text of texts) text.append(el("span", { class: "ddp-try-prompt" }, this.prompt.value));
    this.texts.replaceChildren(
      ...texts.map((text, index) =>
        el("div", {}, texts.length > 1 ? el("h3", {}, sources[index].name) : null, text),
      ),
    );
    const topK = Number(this.topK.value);
    const options = {
      prompt: this.prompt.value,
      temperature: Number(this.temperature.input.value),
      top_k: topK === 0 ? null : topK,
      num_tokens: Number(this.length.input.value),
      seed: Math.max(0, Math.round(Number(this.seed.value) || 0)),
    };
    try {
      for (const [index, { model, step }] of sources.entries()) {
        await model.generate(options, step, (token) => add(texts[index], token), stopper.signal);
      }
    } catch (error) {
      if (error.name !== "AbortError") showText(this.failure, error.message);
    } finally {
      this.stopper = null;
      setText(this.button, "Write");
    }
  }

  /** Writes again, with other checkpoints. */
  again() {
    if (this.stopper) this.stopper.abort();
    else if (this.hasWritten) this.write();
  }

  close() {
    this.stopper?.abort();
  }
}

/** An empty element for the text of one checkpoint. */
function textOf(label) {
  const attributes = { class: "ddp-sample-text ddp-try-output", dir: "auto", tabindex: 0 };
  return el("p", { ...attributes, role: "group", "aria-label": label });
}

/** Adds a token to a text; its probability and the most probable others are its title. */
function add(output, { text, probability, others }) {
  const rest = others.map((other) => `${quoted(other.text)} ${percent(other.probability, 0)}`).join(", ");
  const title = `${quoted(text)}: ${percent(probability, 0)}. Others: ${rest}`;
  const token = el("span", { class: "ddp-try-written", title }, text);
  token.style.setProperty("--share", probability.toFixed(3));
  output.append(token);
  output.scrollTop = output.scrollHeight;
}

const NAMES = new Map([
  ["\n", "line break"],
  [" ", "space"],
  ["", "part of a character"],
]);
const quoted = (text) => NAMES.get(text) ?? `“${text}”`;
