// Throughput, speed-up and parallel efficiency of runs on different numbers of ranks.

// Equal to the limit in `ddp_gui/learn/measures.py`: slightly more than 1 is possible, because half of the
// samples may fit a cache better.
export const MAX_EFFICIENCY = 1.1;

/**
 * @typedef {object} Measured
 * @property {number} num_ranks
 * @property {number | null} global_batch
 * @property {number | null} num_train
 * @property {{ samples_per_s: number, step_time_s: number, mean_step_time_s: number } | null} pace
 */

// Runs that differ only in these fields do the same work on different ranks. A period in steps follows from the
// number of ranks; the pace counts neither evaluations nor saves.
const FIELDS_OF_RANKS = new Set([
  "nproc_per_node",
  "num_nodes",
  "batch_size",
  "eval_every_steps",
  "checkpoint_every_steps",
]);
// Fields that only concern the job scheduler. Partition and GPU type are not among them: they change the
// hardware.
const FIELDS_OF_A_JOB = new Set(["time_limit", "memory_gb", "account", "qos", "extra_lines"]);

/**
 * The number of samples that all ranks together have trained with after a step; null if unknown.
 * @param {Measured} head
 * @param {number} step
 */
export function samplesAt({ global_batch: batch, num_train: numTrain }, step) {
  if (!batch || !numTrain) return null;
  const stepsPerEpoch = Math.ceil(numTrain / batch);
  return Math.floor(step / stepsPerEpoch) * numTrain + Math.min((step % stepsPerEpoch) * batch, numTrain);
}

/**
 * The ratio of the samples per second of two runs; null if either is unknown. Must equal `speed_up` in
 * `ddp_gui/events/analysis/pace.py`.
 * @param {Measured | null} run
 * @param {Measured | null} base
 */
export function speedUp(run, base) {
  return run?.pace && base?.pace ? run.pace.samples_per_s / base.pace.samples_per_s : null;
}

/**
 * The speed-up of each run over the run with the fewest ranks, and the parallel efficiency. Null if anything
 * but the ranks differs, or if a run was too short to measure.
 * @param {Measured[]} heads
 * @param {{ field: string }[]} differing fields in which the runs differ
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
