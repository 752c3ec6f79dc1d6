// A user's progress in a lesson: prediction, runs and answers. It is stored in the browser or, with a login,
// in the account, so that another device continues where this one stopped.

import { person } from "../auth/person.js";
import { prefer, preference } from "../shared/browser.js";
import { forgetOfAccount, keepWithAccount, ofAccount } from "./account.js";
import { isAhead, joined, nothing } from "./joining.js";

/** @typedef {import("./joining.js").Progress} Progress */

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
  const kept = known ? known[name] : preference(key(name), null);
  return { ...nothing(), ...(typeof kept === "object" ? kept : null) };
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
  } else prefer(key(name), progress);
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
  } else prefer(key(name), anew);
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
    await new Promise((resolve) => {
      setTimeout(resolve, KEPT_EVERYWHERE_AFTER_MS);
    });
  });
}

/**
 * Calls `onNews` when another tab or device is ahead of this one; returns a function that stops it.
 * @param {string} name
 * @param {Progress} progress the state of this page
 * @param {() => void} onNews
 */
export function watchProgress(name, progress, onNews) {
  const look = () => isAhead(progressOf(name), progress) && onNews();
  const inBrowser = (event) => event.key?.endsWith(key(name)) && look();
  const onVisible = async () => {
    if (document.visibilityState !== "visible" || !known) return;
    // Progress that this page has not sent yet is newer than the account's.
    const found = (await ofAccount())[name];
    if (found && known) known[name] = joined(found, progressOf(name));
    look();
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
export function progressWords({ isLocked, isStarted, isDone }) {
  if (isDone) return "done";
  if (isStarted) return "run, questions are open";
  return isLocked ? "predicted, not run yet" : "";
}
