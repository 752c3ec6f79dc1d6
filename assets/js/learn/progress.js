// A user's progress in a lesson: prediction, runs and answers. It is stored in the browser or, with a login,
// in the account, so that another device continues where this one stopped.

import { address, callEndpoint, fetchJson, pause, posted } from "../shared/net.js";
import { showError } from "../shared/dialog.js";
import { person } from "../auth/person.js";
import { setPreference, preference } from "../shared/browser.js";

// Merges the progress of two pages of one user; `ddp_gui/learn/progress.py` applies the same rule.

/**
 * @typedef {object} Progress
 * @property {number} round how often the lesson was restarted
 * @property {string | null} poll the poll in which the prediction was made
 * @property {any} prediction a choice, or the values of a drawn curve; null if not made yet
 * @property {boolean} isLocked the prediction is final
 * @property {boolean} isStarted the lesson's runs were requested
 * @property {(string | null)[]} runs run ids, null if not started yet
 * @property {Record<string, { choice: string, runId: string }[]>} attempts by question
 * @property {Record<string, number>} answers by question
 * @property {boolean} isDone all questions are answered
 * @property {string | null} code the script of a lesson in code, as the learner left it
 * @property {number} numTries runs of a lesson in code
 * @property {boolean} isSolutionShown the solution of a lesson in code was shown
 */

/** @returns {Progress} */
export function nothing() {
  return {
    round: 0,
    poll: null,
    prediction: null,
    isLocked: false,
    isStarted: false,
    runs: [],
    attempts: {},
    answers: {},
    isDone: false,
    code: null,
    numTries: 0,
    isSolutionShown: false,
  };
}

/**
 * True if a page knows a start, a lock, an answer or a restart that the other one does not.
 * @param {Progress} one
 * @param {Progress} other
 */
export function isAhead(one, other) {
  if (one.round !== other.round) return one.round > other.round;
  const numAnswers = Object.keys(one.answers).length - Object.keys(other.answers).length;
  return (one.isLocked && !other.isLocked) || (one.isStarted && !other.isStarted) || numAnswers > 0;
}

/**
 * Merges reported progress into the known one: the newer wins, and no started run is lost. Reports of an
 * earlier round are ignored.
 * @param {Progress} known
 * @param {Progress} newer
 * @returns {Progress}
 */
export function joined(known, newer) {
  if (newer.round !== known.round) return newer.round > known.round ? newer : known;
  const merged = { ...newer };
  const { isLocked, prediction, poll } = known;
  if (isLocked) Object.assign(merged, { isLocked, prediction, poll });
  // A page that does not know of a run cannot have stopped the lesson.
  const knowsLess = known.runs.some((runId, index) => runId !== null && !newer.runs[index]);
  merged.isStarted = newer.isStarted || (known.isStarted && knowsLess);
  merged.isDone = known.isDone || newer.isDone;
  const length = Math.max(known.runs.length, newer.runs.length);
  merged.runs = Array.from({ length }, (_, index) => newer.runs[index] ?? known.runs[index] ?? null);
  merged.attempts = { ...newer.attempts };
  for (const [number, before] of Object.entries(known.attempts)) {
    const made = newer.attempts[number] ?? [];
    const ids = new Set(made.map(({ runId }) => runId));
    merged.attempts[number] = [...before.filter(({ runId }) => !ids.has(runId)), ...made];
  }
  merged.answers = { ...newer.answers, ...known.answers };
  return merged;
}

// Stores progress with the user's account: at most once per second, one request at a time, also when the page
// is closed.

const KEEP_EVERY_MS = 1000;
const TRY_AGAIN_MS = 5000;
/** Progress that is not yet sent, by lesson. */
const waiting = new Map();
let timer = null;
let isTelling = false;
let hasComplained = false;

/** The progress of the current user, by lesson. */
async function ofAccount() {
  return (await fetchJson(address("live/learn/progress"))).progress;
}

/**
 * @param {string} name of a lesson
 * @param {object} progress the current state, which may change until it is sent
 * @param {(known: any) => void} onAnswer receives the stored progress, merged with that of other pages
 */
function keepWithAccount(name, progress, onAnswer) {
  waiting.set(name, { progress, onAnswer });
  timer ??= setTimeout(tell, KEEP_EVERY_MS);
}

/** Replaces the stored progress of a lesson. */
async function forgetOfAccount(name, anew) {
  waiting.delete(name);
  await callEndpoint("keep_progress", name, anew);
}

async function tell() {
  timer = null;
  if (isTelling) return;
  isTelling = true;
  let isRefused = false;
  for (const [name, { progress, onAnswer }] of Array.from(waiting)) {
    waiting.delete(name);
    try {
      onAnswer(await callEndpoint("keep_progress", name, progress));
      hasComplained = false;
    } catch (error) {
      isRefused = true;
      if (!waiting.has(name)) waiting.set(name, { progress, onAnswer });
      if (!hasComplained) showError(`Your progress is not saved yet: ${error.message}`);
      hasComplained = true;
    }
  }
  isTelling = false;
  if (waiting.size > 0) timer ??= setTimeout(tell, isRefused ? TRY_AGAIN_MS : KEEP_EVERY_MS);
}

// Send pending progress when the page is closed.
addEventListener("pagehide", () => {
  for (const [name, { progress }] of waiting) {
    const options = posted({ data: [name, progress] });
    fetch(address("gradio_api/run/keep_progress"), { ...options, keepalive: true });
  }
});

// Reading, changing and watching the progress of this page.

const KEPT_EVERYWHERE_AFTER_MS = 500;

const key = (name) => `lesson:${name}`;
/** The progress stored in the account, by lesson; null without a login. */
let known = null;

/** The name under which the progress of a lesson in code is stored. */
export function progressName(name) {
  return `code:${name}`;
}

/** Loads the progress of the account; `progressOf` must be called only afterwards. */
export async function readProgress() {
  known = (await person()).has_login ? await ofAccount() : null;
}

/**
 * @param {string} name of a lesson
 * @returns {Progress}
 */
export function progressOf(name) {
  const stored = known ? known[name] : preference(key(name), null);
  return { ...nothing(), ...(typeof stored === "object" ? stored : null) };
}

/**
 * Stores progress, merged with what another page stored in the meantime: newer values win, and no started run
 * is lost.
 * @param {string} name
 * @param {Progress} progress is updated in place
 */
export function keepProgress(name, progress) {
  Object.assign(progress, joined(progressOf(name), progress));
  if (known) {
    known[name] = structuredClone(progress);
    keepWithAccount(name, progress, (answer) => {
      if (known) known[name] = joined(answer, known[name]);
      Object.assign(progress, joined(answer, progress));
    });
  } else setPreference(key(name), progress);
}

/**
 * Restarts a lesson, optionally in a poll.
 * @param {string} name
 * @param {string | null} poll
 * @returns {Promise<Progress>} resolves when stored
 */
export async function forgetProgress(name, poll = null) {
  const anew = { ...nothing(), round: progressOf(name).round + 1, poll };
  if (known) {
    await forgetOfAccount(name, anew);
    known[name] = anew;
  } else setPreference(key(name), anew);
  return structuredClone(anew);
}

/**
 * Runs an action exclusively among the tabs of this browser, if it supports the Web Locks API.
 * @param {() => Promise<void>} action
 */
export async function oneAtATime(action) {
  if (!navigator.locks) {
    await action();
    return;
  }
  await navigator.locks.request("ddp-lesson", async () => {
    await action();
    // Other tabs see the stored progress only a moment later.
    await pause(KEPT_EVERYWHERE_AFTER_MS);
  });
}

/**
 * Calls `onNews` when another tab or device is ahead of this one; returns a function that stops it.
 * @param {string} name
 * @param {Progress} progress the state of this page
 * @param {() => void} onNews
 */
export function watchProgress(name, progress, onNews) {
  const checkForNews = () => isAhead(progressOf(name), progress) && onNews();
  const inBrowser = (event) => event.key?.endsWith(key(name)) && checkForNews();
  const onVisible = async () => {
    if (document.visibilityState !== "visible" || !known) return;
    // Progress that this page has not sent yet is newer than the account's.
    const stored = (await ofAccount())[name];
    if (stored && known) known[name] = joined(stored, progressOf(name));
    checkForNews();
  };
  const seen = () => onVisible().catch(() => {}); // retried when the page becomes visible again
  window.addEventListener("storage", inBrowser);
  document.addEventListener("visibilitychange", seen);
  return () => {
    window.removeEventListener("storage", inBrowser);
    document.removeEventListener("visibilitychange", seen);
  };
}

/**
 * A short text for the progress.
 * @param {Progress} progress
 */
export function progressText({ isLocked, isStarted, isDone }) {
  if (isDone) return "done";
  if (isStarted) return "run, questions are open";
  return isLocked ? "predicted, not run yet" : "";
}
