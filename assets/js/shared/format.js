// Formats numbers, times and sizes; an unknown value is shown as a dash.

export const UNKNOWN = "–";

/**
 * @typedef {number | null | undefined} Reading A measured value; null or undefined if it was not measured.
 */

/** @type {(value: unknown) => value is number} */
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
// Copied or damaged files can contain any number. This is the last second a JavaScript Date can represent;
// sizes and durations must not be negative.
const LAST_UNIX_S = 8.64e12;
/** @type {(value: Reading) => value is number} */
const isTime = (value) => isNumber(value) && Math.abs(value) <= LAST_UNIX_S;
/** @type {(value: Reading) => value is number} */
const isAmount = (value) => isNumber(value) && value >= 0;
const MAX_NAME_LENGTH = 30;
// Values from here on use an exponent: more digits would only widen the card.
const EXPONENT_FROM = 1e15;
/** @type {Record<string, string>} */
const DEVICE_LABELS = { cuda: "GPU", cpu: "CPU rank" };

/**
 * 12,345
 * @param {Reading} value
 */
export function count(value) {
  if (!isNumber(value)) return UNKNOWN;
  return Math.abs(value) < EXPONENT_FROM ? Math.round(value).toLocaleString("en-GB") : value.toExponential(2);
}

/**
 * Three or four significant digits, never an exponent for everyday sizes.
 * @param {Reading} value
 */
export function number(value, digits = 4) {
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2);
  if (size >= 1000) return count(value);
  return value.toLocaleString("en-GB", { maximumSignificantDigits: digits });
}

/**
 * A loss with a fixed number of decimals, so that its width stays constant; below 0.01 the precision drops to
 * fit a tile.
 * @param {Reading} value
 */
export function loss(value) {
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 100) return number(value);
  if (size >= 0.01 || size === 0) return value.toFixed(4);
  return size >= 0.001 ? value.toPrecision(3) : value.toExponential(2);
}

/**
 * 87.2%
 * @param {Reading} fraction
 */
export function percent(fraction, decimals = 1) {
  if (!isNumber(fraction)) return UNKNOWN;
  return Math.abs(fraction) < EXPONENT_FROM
    ? `${(fraction * 100).toFixed(decimals)}%`
    : `${number(fraction)} × 100%`;
}

/** Metrics that are fractions, shown in percent. */
export const SHARES = new Set(["accuracy", "top5_accuracy", "macro_f1"]);

/**
 * Formats a metric by its name: fractions in percent, all others as plain numbers.
 * @param {string} name
 * @param {Reading} value
 */
export function metric(name, value) {
  if (SHARES.has(name)) return percent(value);
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  return size >= 1 && size < 100 ? value.toFixed(2) : number(value, 3);
}

/** @type {Record<string, string>} */
const SHORT_NAMES = {
  rmse: "RMSE",
  mae: "MAE",
  r2: "R²",
  macro_f1: "macro F1",
  top5_accuracy: "top-5 accuracy",
};

/**
 * bits_per_character -> bits per character
 * @param {string} name
 */
export function metricLabel(name) {
  // Plotly interprets tags in a title as markup.
  if (Object.hasOwn(SHORT_NAMES, name)) return SHORT_NAMES[name];
  return shortName(name).replaceAll("_", " ").replaceAll("<", "‹");
}

/**
 * Shortens a name from a run directory to fit a legend or a table.
 * @param {unknown} name
 */
export function shortName(name, most = MAX_NAME_LENGTH) {
  const characters = Array.from(String(name ?? "").slice(0, 2 * most + 2));
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : characters.join("");
}

/**
 * The text with a capital first letter.
 * @param {string} text
 */
export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * 2.5 MB (decimal units).
 * @param {Reading} value
 */
export function bytes(value) {
  if (!isAmount(value)) return UNKNOWN;
  const [unit, name] = byteUnit(value);
  const scaled = value / unit;
  if (scaled >= EXPONENT_FROM) return `${scaled.toExponential(2)} ${name}`;
  return `${scaled < 10 && unit > 1 ? scaled.toFixed(1) : Math.round(scaled)} ${name}`;
}

/**
 * The unit in which a size is shown: its number of bytes and its name.
 * @param {number} value
 * @returns {[number, string]}
 */
export function byteUnit(value) {
  if (value >= 1e12) return [1e12, "TB"];
  if (value >= 1e9) return [1e9, "GB"];
  if (value >= 1e6) return [1e6, "MB"];
  return value >= 1e3 ? [1e3, "kB"] : [1, "bytes"];
}

/**
 * 370 µs, 3.24 ms, 28.5 ms, 1.25 s: for a step, a phase of it or a message. Three digits, so that the phases
 * add up to the step.
 * @param {Reading} seconds
 */
export function shortTime(seconds) {
  if (!isAmount(seconds)) return UNKNOWN;
  if (seconds >= 1e6) return duration(seconds);
  if (seconds >= 0.9995) return `${seconds.toFixed(2)} s`;
  if (seconds < 0.9995e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  const ms = seconds * 1e3;
  const decimals = [9.995, 99.95].filter((border) => ms < border).length;
  return `${ms.toFixed(decimals)} ms`;
}

/**
 * 1.5 GB/s
 * @param {Reading} bytesPerSecond
 */
export function rate(bytesPerSecond) {
  return isAmount(bytesPerSecond) ? `${bytes(bytesPerSecond)}/s` : UNKNOWN;
}

/**
 * 12 s, 3 min 05 s, 2 h 10 min, 3 d 4 h.
 * @param {Reading} seconds
 */
export function duration(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  /** @type {(value: number) => string} */
  const pad = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  if (whole >= EXPONENT_FROM) return `${(whole / 86400).toExponential(2)} d`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/**
 * in less than a minute, in about 4 min, in about 2.5 h: for estimates; null if unknown.
 * @param {Reading} seconds
 */
export function about(seconds) {
  if (!isNumber(seconds)) return null;
  if (seconds < 45) return "in less than a minute";
  if (seconds < 3600) return `in about ${Math.max(1, Math.round(seconds / 60))} min`;
  return seconds < EXPONENT_FROM ? `in about ${(seconds / 3600).toFixed(1)} h` : null;
}

/**
 * 1st, 2nd, 3rd, 4th, 11th …
 * @param {number} value
 */
export function ordinal(value) {
  const isTeen = [11, 12, 13].includes(value % 100);
  return `${value}${isTeen ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[value % 10] ?? "th")}`;
}

/**
 * just now, 5 min ago, 3 h ago, yesterday 14:05, 2 Nov 2026.
 * @param {Reading} unixSeconds
 */
export function ago(unixSeconds, nowMs = Date.now()) {
  if (!isTime(unixSeconds)) return UNKNOWN;
  const seconds = nowMs / 1000 - unixSeconds;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 7 * 86400) return `${Math.round(seconds / 86400)} d ago`;
  return new Date(unixSeconds * 1000).toLocaleDateString("en-GB", DATE);
}

/** @type {Intl.DateTimeFormatOptions} */
const DATE = { day: "numeric", month: "short", year: "numeric" };
/** @type {Intl.DateTimeFormatOptions} Times name their zone, because logs may use the server's. */
const TIME_WITH_ZONE = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };

/**
 * 21 Nov 2026, 14:05:09 CET
 * @param {Reading} unixSeconds
 */
export function dateTime(unixSeconds) {
  if (!isTime(unixSeconds)) return UNKNOWN;
  return new Date(unixSeconds * 1000).toLocaleString("en-GB", { ...DATE, ...TIME_WITH_ZONE });
}

/**
 * 2026-11-21T14:05:09.000Z, machine-readable; null if the date cannot be represented.
 * @param {Reading} unixSeconds
 */
export function isoTime(unixSeconds) {
  return isTime(unixSeconds) ? new Date(unixSeconds * 1000).toISOString() : null;
}

/**
 * 14:05:09 CET
 * @param {Reading} unixSeconds
 */
export function clock(unixSeconds) {
  if (!isTime(unixSeconds)) return UNKNOWN;
  return new Date(unixSeconds * 1000).toLocaleTimeString("en-GB", TIME_WITH_ZONE);
}

/**
 * The number of ranks on all nodes.
 * @param {{ num_nodes: number, nproc_per_node: number }} config
 */
export function worldSize(config) {
  return config.num_nodes * config.nproc_per_node;
}

/**
 * 2 CPU ranks, 1 GPU; 2 ranks while the device is unknown.
 * @param {Reading} num
 * @param {string | null | undefined} device
 */
export function ranks(num, device) {
  if (!isNumber(num)) return UNKNOWN;
  const word = DEVICE_LABELS[device ?? ""] ?? "rank";
  return `${count(num)} ${word}${num === 1 ? "" : "s"}`;
}

/** @type {Record<string, string[]>} */
const STATES = {
  queued: ["wait", "queued"],
  starting: ["wait", "starting"],
  running: ["play", "running"],
  paused: ["pause", "paused"],
  stopping: ["save", "stopping"],
  finished: ["check", "finished"],
  stopped: ["square", "stopped"],
  failed: ["cross", "failed"],
  lost: ["question", "lost"],
};

/**
 * The icon name and the label of a run's state.
 * @param {string} name
 */
export function state(name) {
  return STATES[name] ?? ["question", name ?? "unknown"];
}

/**
 * True if the latest loss is NaN: the run then reports null.
 * @param {{ step: number, loss?: Reading }} values a run's current values, or its row
 */
export function isLossNaN({ step, loss: value }) {
  return step > 0 && value === null;
}

export const LIVE_STATES = new Set(["queued", "starting", "running", "paused", "stopping"]);

/**
 * Returns the part of its steps that a run has done; null if their number is unknown before its end.
 * @param {{ state: string, step: number, num_steps: number | null }} run
 */
export function shareDone(run) {
  if (run.state === "finished") return 1; // a script may stop early, or its number of steps is unknown
  return run.num_steps ? Math.min(1, run.step / run.num_steps) : null;
}

/**
 * 40 of 1,200; 40 if the number of steps is unknown.
 * @param {{ step: number, num_steps: number | null }} run
 */
export function stepOf({ step, num_steps: numSteps }) {
  return numSteps ? `${count(step)} of ${count(numSteps)}` : count(step);
}

/**
 * How exactly Resume reproduces a run, as the end of "goes on from the checkpoint of step 40".
 * @param {boolean} isDeterministic
 * @param {string} deviceKind cuda or cpu; empty if unknown
 */
export function resumedBits(isDeterministic, deviceKind) {
  if (isDeterministic || deviceKind === "cpu") return " with the same bits";
  return deviceKind === "cuda" ? " (on GPUs without Deterministic not to the last bit)" : "";
}
