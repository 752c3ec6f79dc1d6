// Stores progress with the user's account: at most once per second, one request at a time, also when the page
// is closed.

import { address, callEndpoint, fetchJson } from "../shared/net.js";
import { complain } from "../shared/dialog.js";

const KEEP_EVERY_MS = 1000;
const TRY_AGAIN_MS = 5000;
/** Progress that is not yet sent, by lesson. */
const waiting = new Map();
let timer = null;
let isTelling = false;
let hasComplained = false;

/** The progress of the current user, by lesson. */
export async function ofAccount() {
  return (await fetchJson(address("live/learn/progress"))).progress;
}

/**
 * @param {string} name of a lesson
 * @param {object} progress the current state, which may change until it is sent
 * @param {(known: any) => void} onAnswer receives the stored progress, merged with that of other pages
 */
export function keepWithAccount(name, progress, onAnswer) {
  waiting.set(name, { progress, onAnswer });
  timer ??= setTimeout(tell, KEEP_EVERY_MS);
}

/** Replaces the stored progress of a lesson. */
export async function forgetOfAccount(name, anew) {
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
      if (!hasComplained) complain(`Your progress is not saved yet: ${error.message}`);
      hasComplained = true;
    }
  }
  isTelling = false;
  if (waiting.size > 0) timer ??= setTimeout(tell, isRefused ? TRY_AGAIN_MS : KEEP_EVERY_MS);
}

// Send pending progress when the page is closed.
window.addEventListener("pagehide", () => {
  for (const [name, { progress }] of waiting) {
    const body = JSON.stringify({ data: [name, progress] });
    const headers = { "Content-Type": "application/json" };
    fetch(address("gradio_api/run/keep_progress"), { method: "POST", headers, body, keepalive: true });
  }
});
