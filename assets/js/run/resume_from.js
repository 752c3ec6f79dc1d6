// Resume from one checkpoint, on the ranks that the run had.

import { act } from "../shared/toast.js";

/**
 * Starts an ended run again from the checkpoint of a step; tells whether it worked.
 * @param {HTMLButtonElement} button
 * @param {string} runId
 * @param {number} step
 */
export function resumeFrom(button, runId, step) {
  return act(button, "resume_run", runId, step, null, "keep");
}
