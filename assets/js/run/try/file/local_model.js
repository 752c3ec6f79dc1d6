// A model that runs in this browser: the same answers as those of the server, from an ONNX file.

import { prepare } from "./prepare.js";

const MOST_CLASSES = 20;
const MOST_OTHERS = 4;

export class LocalModel {
  /** `run` maps an input (values and shape) to the output: its numbers and their shape. */
  constructor(about, run) {
    this.about = about;
    this.run = run;
  }

  async predict(inputs) {
    const prepared = await prepare(this.about, inputs);
    const scores = (await this.run(prepared.values, prepared.shape)).data;
    return { input: prepared.shown, ...this.answer(Array.from(scores, Number)) };
  }

  answer(scores) {
    const { output, task } = this.about;
    if (task === "tabular_regression") return { value: scores[0] * output.std + output.mean };
    const probabilities = softmax(scores);
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
    const shown = order.slice(0, MOST_CLASSES);
    if (order.length <= MOST_CLASSES) shown.sort((a, b) => a - b);
    const name = (place) => output.class_names[place] ?? `class ${place}`;
    return {
      prediction: name(order[0]),
      probabilities: shown.map((place) => ({ class_name: name(place), probability: probabilities[place] })),
      num_classes: order.length,
    };
  }

  /** Calls `onToken` with each token of a continued text; `signal` stops it. */
  async generate(options, _step, onToken, signal) {
    const { vocabulary } = this.about.input.tokenizer;
    const length = this.about.input.shape[0];
    const random = generator(options.seed);
    const tokens = Array.from(options.prompt, (character) => vocabulary.indexOf(character));
    if (tokens.includes(-1)) throw new Error("The beginning has characters that the model never saw.");
    if (tokens.length === 0) tokens.push(Math.max(0, vocabulary.indexOf("\n")));
    for (let num = 0; num < options.num_tokens; num += 1) {
      if (signal.aborted) return;
      const seen = tokens.slice(-length);
      const padded = [...seen, ...Array(length - seen.length).fill(0)];
      const { data } = await this.run(padded, [1, length]);
      const start = (seen.length - 1) * vocabulary.length;
      const scores = Array.from(data.slice(start, start + vocabulary.length), Number);
      const token = draw(scores, options, random);
      tokens.push(token);
      onToken(described(scores, token, vocabulary));
      // Lets the page show the token.
      await new Promise((resolve) => {
        setTimeout(resolve);
      });
    }
  }
}

function described(scores, token, vocabulary) {
  const plain = softmax(scores);
  const others = [...plain.keys()]
    .sort((a, b) => plain[b] - plain[a])
    .filter((place) => place !== token)
    .slice(0, MOST_OTHERS);
  return {
    text: vocabulary[token],
    probability: plain[token],
    others: others.map((place) => ({ text: vocabulary[place], probability: plain[place] })),
  };
}

function draw(scores, { temperature, top_k: topK }, random) {
  const largest = scores.indexOf(Math.max(...scores));
  if (temperature === 0) return largest;
  const least = topK === null ? -Infinity : [...scores].sort((a, b) => b - a)[topK - 1];
  const kept = softmax(scores.map((score) => (score < least ? -Infinity : score / temperature)));
  let rest = random();
  const found = kept.findIndex((share) => {
    rest -= share;
    return rest < 0;
  });
  return found === -1 ? largest : found;
}

function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** Random numbers from 0 to 1 that a seed repeats (mulberry32). */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
