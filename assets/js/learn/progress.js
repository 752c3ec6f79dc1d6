// How far somebody is with a lesson: what was predicted, started and answered. It is kept in the browser, or with
// the account of whoever is logged in, so that another device goes on where this one was.

import { person } from "../auth/person.js";
import { prefer, preference } from "../shared/prefs.js";
import { forgetOfAccount, keepWithAccount, ofAccount } from "./account.js";
import { isAhead, joined, nothing } from "./joining.js";

/** @typedef {import("./joining.js").Progress} Progress */

const KEPT_EVERYWHERE_AFTER_MS = 500;

const key = (name) => `lesson:${name}`;
/** What is kept with the account, by lesson; null where nobody logs in. */
let known = null;

/** Reads what is kept with the account; resolves when `progressOf` can be asked. */
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
 * Keeps it, joined with what another page has kept meanwhile: the newer wins, and no started run is lost.
 * @param {string} name
 * @param {Progress} progress is brought up to date
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
 * Begins a lesson anew, perhaps together with others in a poll.
 * @param {string} name
 * @param {string | null} poll
 * @returns {Promise<Progress>} when it is kept
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
 * Does something that the other pages of this browser do not do at the same time, where browsers can tell.
 * @param {() => Promise<void>} action
 */
export async function oneAtATime(action) {
  if (!navigator.locks) {
    await action();
    return;
  }
  await navigator.locks.request("ddp-lesson", async () => {
    await action();
    // What it has kept reaches the other pages a moment later.
    await new Promise((resolve) => {
      setTimeout(resolve, KEPT_EVERYWHERE_AFTER_MS);
    });
  });
}

/**
 * Calls `onNews` when another page, or another device, is ahead of this one; returns a function that ends it.
 * @param {string} name
 * @param {Progress} progress as this page knows it
 * @param {() => void} onNews
 */
export function watchProgress(name, progress, onNews) {
  const look = () => isAhead(progressOf(name), progress) && onNews();
  const inBrowser = (event) => event.key?.endsWith(key(name)) && look();
  const onVisible = async () => {
    if (document.visibilityState !== "visible" || !known) return;
    // What this page has not told yet is the newer.
    const found = (await ofAccount())[name];
    if (found && known) known[name] = joined(found, progressOf(name));
    look();
  };
  const seen = () => onVisible().catch(() => {}); // it is asked again when the page is seen the next time
  window.addEventListener("storage", inBrowser);
  document.addEventListener("visibilitychange", seen);
  return () => {
    window.removeEventListener("storage", inBrowser);
    document.removeEventListener("visibilitychange", seen);
  };
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
