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
 * Samples per second of all ranks, over all whole steps; null where too few were measured.
 * @param {Measured} head
 */
export function meanThroughput({ pace, global_batch: batch }) {
  return pace && batch ? batch / pace.mean_step_time_s : null;
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
  const paces = heads.map((head) => head && meanThroughput(head));
  const fewest = heads.reduce(
    (best, head, index) => (head.num_ranks < heads[best].num_ranks ? index : best),
    0,
  );
  const base = paces[fewest];
  if (!base || paces.some((pace) => !pace)) return null;
  return heads.map((head, index) => {
    const speedUp = (paces[index] ?? 0) / base;
    return { speedUp, efficiency: speedUp / (head.num_ranks / heads[fewest].num_ranks) };
  });
}
