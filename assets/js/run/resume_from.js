// Resumes a run from a checkpoint, with the same number of ranks.

import { act } from "../shared/toast.js";

/**
 * Restarts a run from the checkpoint of a step; returns true if the request succeeded.
 * @param {HTMLButtonElement} button
 * @param {string} runId
 * @param {number} step
 */
export function resumeFrom(button, runId, step) {
  return act(button, "resume_run", runId, step, null, "keep");
}
