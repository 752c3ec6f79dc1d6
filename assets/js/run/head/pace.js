// Step time and throughput, always computed from the same steps.

import { count, shortTime, LIVE_STATES, number, UNKNOWN } from "../../shared/format.js";

/**
 * @typedef {object} Pace
 * @property {number} step_time_s
 * @property {number} samples_per_s
 * @property {number} num_steps
 * @property {number} mean_step_time_s
 * @property {boolean} is_whole_run
 */

/**
 * The value and the note of both tiles.
 * @param {{ state: string, step: number, pace: Pace | null }} head
 * @returns {{ samples: [string, string], step: [string, string] }}
 */
export function paceInWords({ state, step, pace }) {
  if (!pace) {
    const note = step > 0 && !LIVE_STATES.has(state) ? "too short to measure" : "after the first steps";
    return { samples: [UNKNOWN, note], step: [UNKNOWN, note] };
  }
  const samples = number(pace.samples_per_s, 3);
  const time = shortTime(pace.step_time_s);
  // The number of steps with a full global batch; the cards of the ranks sample only about one step per
  // second.
  const steps = `${count(pace.num_steps)} steps`;
  if (!pace.is_whole_run) {
    return { samples: [samples, "all ranks together"], step: [time, `mean of the latest ${steps}`] };
  }
  const mean = number((pace.samples_per_s * pace.step_time_s) / pace.mean_step_time_s, 3);
  return {
    samples: [samples, `all ranks, at the median step; mean ${mean}`],
    step: [time, `median of ${steps}; mean ${shortTime(pace.mean_step_time_s)}`],
  };
}
