// The text of an empty chart: when its first point is expected, or why it has no points.

import { count, duration, isLossNaN, LIVE_STATES, metricLabel } from "../../shared/format.js";

const COARSE_FROM_S = 60;
const COARSE_S = 5;
const SOON_S = 3;
const ENDED_EARLY = "The run ended before its first step.";

/**
 * @typedef {object} Head
 * @property {string} state
 * @property {string | null} [doing]
 * @property {number} step
 * @property {number | null} num_steps
 * @property {number | null} [loss]
 * @property {number | null} global_batch
 * @property {number | null} num_train
 * @property {{ step_time_s: number } | null} pace
 * @property {Record<string, number | null>} metrics
 */

/**
 * The next step at which a run evaluates, and its description; null if unknown.
 * @param {Head} head
 * @param {number | null} everySteps the configured interval; null: at the end of every epoch
 * @returns {{ step: number, words: string } | null}
 */
export function nextEvaluation(
  { step, num_steps: last, global_batch: batch, num_train: numTrain },
  everySteps,
) {
  const stepsPerEpoch = batch && numTrain ? Math.ceil(numTrain / batch) : null;
  const every = everySteps ?? stepsPerEpoch;
  if (!every) return null;
  const number = Math.floor(step / every) + 1;
  const due = number * every;
  // A run always evaluates at its end.
  if (last && last < due) return { step: last, words: `at the end of the run, at step ${count(last)}` };
  return { step: due, words: everySteps === null ? `after epoch ${count(number)}` : `at step ${count(due)}` };
}

/**
 * A text with the time of the first evaluation, or the reason why none is expected.
 * @param {Head} head
 * @param {number | null} everySteps
 */
export function firstEvaluationWords(head, everySteps) {
  const [name] = Object.keys(head.metrics ?? {});
  if (name !== undefined) {
    return `Nothing to draw: the validation ${metricLabel(name)} is NaN (not a number).`;
  }
  if (!LIVE_STATES.has(head.state)) return "The run ended before its first evaluation.";
  if (head.doing === "evaluating" && head.state === "running") return "The first evaluation is under way.";
  const next = nextEvaluation(head, everySteps);
  if (next === null) {
    return everySteps === null
      ? "First evaluation after epoch 1."
      : `First evaluation at step ${count(everySteps)}.`;
  }
  const when =
    head.state === "running" && head.pace ? waitWords((next.step - head.step) * head.pace.step_time_s) : "";
  return `First evaluation ${next.words}${when}.`;
}

/**
 * ", in about 1 min 20 s". Rounded to five seconds from one minute on, so that it does not flicker.
 * @param {number} seconds
 */
function waitWords(seconds) {
  if (seconds < SOON_S) return ", in a moment";
  const rounded = seconds < COARSE_FROM_S ? seconds : Math.round(seconds / COARSE_S) * COARSE_S;
  return `, in about ${duration(rounded)}`;
}

/**
 * The text of an empty training loss chart.
 * @param {Head} head
 */
export function lossWords(head) {
  if (isLossNaN(head)) return "Nothing to draw: the loss is NaN (not a number) from the first step on.";
  return LIVE_STATES.has(head.state) ? "The training loss appears with the first steps." : ENDED_EARLY;
}

/**
 * The text of an empty per-step chart.
 * @param {Head} head
 * @param {{ name: string, empty: string }} chart an entry of the summary's `charts`
 */
export function stepWords(head, { name, empty }) {
  if (isLossNaN(head)) return `Nothing to draw: the loss is NaN (not a number), and the ${name} with it.`;
  if (LIVE_STATES.has(head.state)) return empty;
  return head.step > 0 ? `This run has not recorded its ${name}.` : ENDED_EARLY;
}
