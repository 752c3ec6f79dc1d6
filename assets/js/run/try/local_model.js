// A model that runs in this browser from an ONNX file: the same answers as those of the server.

// Converts an input into a model's input in the browser, as `trainers/predict/prepare.py` does on the server.

const INK_SHARE = 0.1;
const UNKNOWN = 1;

/**
 * @typedef {{ values: number[], shape: number[], shown: Record<string, unknown> }} Prepared
 * The numbers of a batch of one, their shape, and the input as the card shows it.
 */

/** @returns {Promise<Prepared>} */
export async function prepare(metadata, inputs) {
  if (metadata.input.kind === "image") return prepareImage(metadata, await storedPixels(metadata, inputs));
  return metadata.input.kind === "table"
    ? prepareRow(metadata, inputs.row)
    : prepareText(metadata, inputs.text);
}

/** The pixels in the range of the training images, channel by channel. */
async function storedPixels(metadata, inputs) {
  const { shape, largest } = metadata.input;
  if (inputs.pixels) return inputs.pixels.flat(3);
  const [channels, height, width] = shape;
  const picture = await decoded(inputs.drawing ?? inputs.image);
  const read = inputs.drawing ? centred(picture, metadata) : fitted(picture, width, height);
  const stored = [];
  for (let channel = 0; channel < channels; channel += 1) {
    for (let pixel = 0; pixel < height * width; pixel += 1) {
      const [red, green, blue] = read.slice(4 * pixel, 4 * pixel + 3);
      const grey = Math.round((red * 299 + green * 587 + blue * 114) / 1000);
      stored.push(Math.round(((channels === 1 ? grey : read[4 * pixel + channel]) * largest) / 255));
    }
  }
  return stored;
}

function decoded(url) {
  const picture = new Image();
  picture.src = url;
  return picture.decode().then(() => picture);
}

function paper(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("This browser cannot draw.");
  return context;
}

/** The pixels (red, green, blue, alpha) of a picture that is scaled to cover a size and cut at its sides. */
function fitted(picture, width, height) {
  const context = paper(width, height);
  const scale = Math.max(width / picture.width, height / picture.height);
  const size = [picture.width * scale, picture.height * scale];
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, (width - size[0]) / 2, (height - size[1]) / 2, size[0], size[1]);
  return context.getImageData(0, 0, width, height).data;
}

/** The pixels of a drawing whose object is centred and as large as those of the training images. */
function centred(picture, metadata) {
  const { shape, background, largest, extent } = metadata.input;
  const [, height, width] = shape;
  const context = paper(picture.width, picture.height);
  context.drawImage(picture, 0, 0);
  const { data } = context.getImageData(0, 0, picture.width, picture.height);
  const ground = (background * 255) / largest;
  /** The brightness at a place; outside of the drawing that of the background. */
  const at = (x, y) => {
    const isInside = x >= 0 && y >= 0 && x < picture.width && y < picture.height;
    return isInside ? data[4 * (y * picture.width + x)] : ground;
  };
  const [left, top, right, bottom] = boxOf(picture, (x, y) => Math.abs(at(x, y) - ground) > INK_SHARE * 255);
  const longest = Math.max((bottom - top) / height, (right - left) / width) / extent;
  const sides = [Math.max(right - left, longest * width), Math.max(bottom - top, longest * height)];
  const start = [(left + right - sides[0]) / 2, (top + bottom - sides[1]) / 2];
  const pixels = new Uint8ClampedArray(4 * width * height);
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    const [x, y] = [pixel % width, Math.floor(pixel / width)];
    const xs = [x, x + 1].map((edge) => Math.round(start[0] + (edge * sides[0]) / width));
    const ys = [y, y + 1].map((edge) => Math.round(start[1] + (edge * sides[1]) / height));
    const value = meanOf(at, [xs[0], xs[1]], [ys[0], ys[1]]) ?? ground;
    pixels.set([value, value, value, 255], 4 * pixel);
  }
  return pixels;
}

/** The left, top, right and bottom edge of the object. */
function boxOf({ width, height }, isObject) {
  let [left, top, right, bottom] = [width, height, 0, 0];
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (isObject(x, y)) {
        [left, top] = [Math.min(left, x), Math.min(top, y)];
        [right, bottom] = [Math.max(right, x + 1), Math.max(bottom, y + 1)];
      }
    }
  }
  if (right <= left) throw new Error("The drawing is empty: draw something.");
  return [left, top, right, bottom];
}

/** The mean of a function over a rectangle of whole places; null if it has none. */
function meanOf(at, [left, right], [top, bottom]) {
  let sum = 0;
  for (let y = top; y < bottom; y += 1) {
    for (let x = left; x < right; x += 1) sum += at(x, y);
  }
  const num = (right - left) * (bottom - top);
  return num > 0 ? sum / num : null;
}

/** @returns {Prepared} */
function prepareImage(metadata, stored) {
  const { shape, mean, std, largest } = metadata.input;
  const [channels, height, width] = shape;
  const size = height * width;
  const values = stored.map((value, pixel) => {
    const channel = Math.floor(pixel / size);
    return (value - mean[channel]) / std[channel];
  });
  let text = "";
  for (let pixel = 0; pixel < size; pixel += 1) {
    for (let channel = 0; channel < (channels === 3 ? 3 : 1); channel += 1) {
      const byte = Math.round((stored[channel * size + pixel] * 255) / largest);
      text += String.fromCharCode(Math.min(255, Math.max(0, byte)));
    }
  }
  const image = { height, width, channels: channels === 3 ? 3 : 1, pixels: btoa(text) };
  return { values, shape: [1, ...shape], shown: { image: { ...image, sides: `${width} × ${height}` } } };
}

/** @returns {Prepared} */
function prepareRow(metadata, row) {
  const { columns, mean, std, feature_names: names, shape } = metadata.input;
  const numbers = [];
  for (const { name, values, has_other: hasOther, has_missing: hasMissing } of columns) {
    const cell = row[name] ?? "";
    const isEmpty = String(cell).trim() === "";
    if (isEmpty && !hasMissing) throw new Error(`${name} is empty; allowed: a number.`);
    if (values.length === 0) numbers.push(isEmpty ? mean[numbers.length] : Number(cell));
    else {
      const isKnown = values.includes(String(cell));
      numbers.push(...values.map((value) => Number(!isEmpty && value === String(cell))));
      if (hasOther) numbers.push(Number(!isEmpty && !isKnown));
    }
    if (hasMissing) numbers.push(Number(isEmpty));
  }
  const scaled = numbers.map((value, pixel) => (value - mean[pixel]) / std[pixel]);
  const shown = scaled.map((value, pixel) => ({ name: names[pixel] ?? "", value }));
  return { values: scaled, shape: [1, ...shape], shown: { numbers: shown } };
}

/** @returns {Prepared} */
function prepareText(metadata, text) {
  const length = metadata.input.shape[0];
  const { tokens, pieces } = tokensOf(metadata, text);
  if (tokens.length === 0) throw new Error("The model finds no word in this text.");
  const used = tokens.slice(0, length);
  const values = [...used, ...Array(length - used.length).fill(metadata.input.padding)];
  const shown = used.map((token, pixel) => {
    const isKnown = token !== UNKNOWN;
    return { text: isKnown ? pieces[pixel] : "\ufffd", is_known: isKnown };
  });
  return {
    values,
    shape: [1, length],
    shown: { tokens: shown, num_tokens: used.length, max_tokens: length },
  };
}

/** The tokens of a text and the pieces that they stand for. */
function tokensOf({ input }, text) {
  const { kind, pattern, vocabulary, first_number: first } = input.tokenizer;
  // Without the u flag: Python escapes more marks than that allows.
  const pieces =
    kind === "words" ? (text.toLowerCase().match(new RegExp(pattern, "g")) ?? []) : Array.from(text);
  const numberOf = new Map(vocabulary.map((piece, pixel) => [piece, first + pixel]));
  return { pieces, tokens: pieces.map((piece) => numberOf.get(piece) ?? UNKNOWN) };
}

const MOST_CLASSES = 20;
const MOST_OTHERS = 4;

export class LocalModel {
  /** `run` maps an input (values and shape) to the output: its numbers and their shape. */
  constructor(metadata, run) {
    this.metadata = metadata;
    this.run = run;
  }

  async predict(inputs) {
    const prepared = await prepare(this.metadata, inputs);
    const scores = (await this.run(prepared.values, prepared.shape)).data;
    return { input: prepared.shown, ...this.answer(Array.from(scores, Number)) };
  }

  answer(scores) {
    const { output, task } = this.metadata;
    if (task === "tabular_regression") return { value: scores[0] * output.std + output.mean };
    const probabilities = softmax(scores);
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
    const shown = order.slice(0, MOST_CLASSES);
    if (order.length <= MOST_CLASSES) shown.sort((a, b) => a - b);
    const name = (pixel) => output.class_names[pixel] ?? `class ${pixel}`;
    return {
      prediction: name(order[0]),
      probabilities: shown.map((pixel) => ({ class_name: name(pixel), probability: probabilities[pixel] })),
      num_classes: order.length,
    };
  }

  /** Calls `onToken` with each token of a continued text; `signal` stops it. */
  async generate(options, _step, onToken, signal) {
    const { vocabulary } = this.metadata.input.tokenizer;
    const length = this.metadata.input.shape[0];
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
    .filter((pixel) => pixel !== token)
    .slice(0, MOST_OTHERS);
  return {
    text: vocabulary[token],
    probability: plain[token],
    others: others.map((pixel) => ({ text: vocabulary[pixel], probability: plain[pixel] })),
  };
}

function draw(scores, { temperature, top_k: topK }, random) {
  const largest = scores.indexOf(Math.max(...scores));
  if (temperature === 0) return largest;
  const least = topK === null ? -Infinity : [...scores].sort((a, b) => b - a)[topK - 1];
  const probabilities = softmax(scores.map((score) => (score < least ? -Infinity : score / temperature)));
  let rest = random();
  const index = probabilities.findIndex((share) => {
    rest -= share;
    return rest < 0;
  });
  return index === -1 ? largest : index;
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
