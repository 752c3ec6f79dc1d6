// What runs have seen and how fast they were, and what more ranks bought.

/**
 * @typedef {object} Measured
 * @property {number} num_ranks
 * @property {number | null} global_batch
 * @property {number | null} num_train
 * @property {{ samples_per_s: number, step_time_s: number, mean_step_time_s: number } | null} pace
 */

// Two runs that differ in nothing else did the same work on other ranks.
const FIELDS_OF_RANKS = new Set(["nproc_per_node", "num_nodes", "batch_size"]);
// What a cluster needs to know of a job. Another partition or type of GPU is another machine: that counts.
const FIELDS_OF_A_JOB = new Set(["time_limit", "memory_gb", "account", "qos", "extra_lines"]);

/**
 * The samples that all ranks together have trained with after a step; null where that is not known.
 * @param {Measured} head
 * @param {number} step
 */
export function samplesAt({ global_batch: batch, num_train: numTrain }, step) {
  if (!batch || !numTrain) return null;
  const stepsPerEpoch = Math.ceil(numTrain / batch);
  return Math.floor(step / stepsPerEpoch) * numTrain + Math.min((step % stepsPerEpoch) * batch, numTrain);
}

/**
 * The place of a step on an axis; null where it is not known.
 * @param {Measured} head
 * @param {number} step
 * @param {string} axis
 */
export function placeOf(head, step, axis) {
  const samples = samplesAt(head, step);
  if (axis === "samples" || samples === null) return samples;
  return samples / (head.num_train ?? 1);
}

/**
 * What the server is asked for, so that a run's curves are averaged over as much of the axis as those of other runs.
 * @param {{ axis: string, smoothing: number }} look the smoothing in the unit of the axis; over epochs in samples
 */
export function asked({ axis, smoothing }) {
  const over = axis === "epochs" ? "samples" : axis;
  return { axis: axis === "time" ? "time" : "step", smoothing, smooth_over: over, smooth_throughput: true };
}

/**
 * How much of an axis is that many steps of the runs: one, two or five times a power of ten; over epochs in samples.
 * @param {string} axis
 * @param {number} steps
 * @param {any[]} heads of the runs; one whose steps are not known yet does not count
 */
export function spanOn(axis, steps, heads) {
  if (axis === "step" || steps === 0) return steps;
  const ofStep = (head) => (axis === "time" ? head?.pace?.step_time_s : head?.global_batch) ?? 0;
  const span = steps * Math.max(0, ...heads.map(ofStep));
  if (!(span > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(span));
  return ([5, 2].find((each) => each * power <= span) ?? 1) * power;
}

/**
 * How many times as many samples per second a run trains with as another; null where either is unknown. The same
 * ratio as `speed_up` in `ddp_gui/events/analysis/pace.py`.
 * @param {Measured | null} run
 * @param {Measured | null} base
 */
export function speedUp(run, base) {
  return run?.pace && base?.pace ? run.pace.samples_per_s / base.pace.samples_per_s : null;
}

/**
 * How many times faster each run is than the one with the fewest ranks, and the share of the ranks' number that
 * this is; null where anything but the ranks differs, or a run was too short to measure.
 * @param {Measured[]} heads
 * @param {{ field: string }[]} differing the fields in which the runs differ
 * @returns {{ speedUp: number, efficiency: number }[] | null}
 */
export function scaling(heads, differing) {
  const names = differing.map(({ field }) => field);
  if (!names.includes("nproc_per_node") && !names.includes("num_nodes")) return null;
  if (!names.every((name) => FIELDS_OF_RANKS.has(name) || FIELDS_OF_A_JOB.has(name))) return null;
  const fewest = heads.reduce(
    (best, head, index) => (head.num_ranks < heads[best].num_ranks ? index : best),
    0,
  );
  const gains = heads.map((head) => speedUp(head, heads[fewest]));
  if (gains.includes(null)) return null;
  return heads.map(({ num_ranks: ranks }, index) => {
    const gain = gains[index] ?? 0;
    return { speedUp: gain, efficiency: gain / (ranks / heads[fewest].num_ranks) };
  });
}
