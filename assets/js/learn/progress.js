// How far somebody is with a lesson: what was predicted, started and answered.

import { prefer, preference } from "../shared/prefs.js";

/**
 * @typedef {object} Progress
 * @property {any} prediction a choice, or the values of a drawn curve; null until there is one
 * @property {boolean} isLocked the prediction stands
 * @property {boolean} isStarted the lesson's runs are wanted
 * @property {(string | null)[]} runs their ids, null where one was not started yet
 * @property {Record<string, { choice: string, runId: string }[]>} attempts by question
 * @property {Record<string, number>} answers by question
 * @property {boolean} isDone everything is answered
 */

/** @returns {Progress} */
function nothing() {
  return {
    prediction: null,
    isLocked: false,
    isStarted: false,
    runs: [],
    attempts: {},
    answers: {},
    isDone: false,
  };
}

const key = (name) => `lesson:${name}`;

/**
 * @param {string} name of a lesson
 * @returns {Progress}
 */
export function progressOf(name) {
  const kept = preference(key(name), null);
  return { ...nothing(), ...(typeof kept === "object" ? kept : null) };
}

/**
 * @param {string} name
 * @param {Progress} progress
 */
export function keepProgress(name, progress) {
  prefer(key(name), progress);
}

/**
 * Forgets what was done in a lesson.
 * @param {string} name
 */
export function forgetProgress(name) {
  prefer(key(name), nothing());
}

/**
 * How far it is, in a word.
 * @param {Progress} progress
 */
export function progressWords({ isLocked, isStarted, isDone }) {
  if (isDone) return "done";
  if (isStarted) return "run, questions are open";
  return isLocked ? "predicted, not run yet" : "";
}
