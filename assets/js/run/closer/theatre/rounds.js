// The rounds of an all-reduce: by the rule of the ring or the tree, or as measured through shared memory.

/**
 * A send within a round.
 * @typedef {{ from: number, to: number, chunk: number }} Send
 */

/**
 * The rounds of a ring all-reduce of n ranks: n−1 rounds of reduce-scatter, then n−1 of all-gather.
 * `counts[rank][chunk]` is the number of ranks a chunk is the sum of, before the round.
 * @param {number} n
 * @returns {{ phase: "reduce-scatter" | "all-gather", sends: Send[], counts: number[][] }[]}
 */
export function ringRounds(n) {
  const counts = Array.from({ length: n }, () => Array.from({ length: n }, () => 1));
  const rounds = [];
  const mod = (value) => ((value % n) + n) % n;
  for (let round = 0; round < 2 * (n - 1); round += 1) {
    const isAdding = round < n - 1;
    const shift = isAdding ? round : round - (n - 1);
    const sends = counts.map((_, from) => ({
      from,
      to: mod(from + 1),
      chunk: mod(isAdding ? from - shift : from + 1 - shift),
    }));
    rounds.push({
      phase: /** @type {"reduce-scatter" | "all-gather"} */ (isAdding ? "reduce-scatter" : "all-gather"),
      sends,
      counts: counts.map((row) => [...row]),
    });
    const moved = sends.map(({ from, chunk }) => counts[from][chunk]);
    sends.forEach(({ to, chunk }, index) => {
      counts[to][chunk] = isAdding ? counts[to][chunk] + moved[index] : moved[index];
    });
  }
  return rounds;
}

/**
 * The state after the last round: every chunk on every rank is the sum of all ranks.
 * @param {number} n
 */
export function ringEnd(n) {
  return Array.from({ length: n }, () => Array.from({ length: n }, () => n));
}

/**
 * The rounds of a binary-tree all-reduce: partial sums move up to rank 0, the total moves down again.
 * @param {number} n
 * @returns {{ phase: "up" | "down", sends: Send[], counts: number[][] }[]}
 */
export function treeRounds(n) {
  const strides = [];
  for (let stride = 1; stride < n; stride *= 2) strides.push(stride);
  const counts = Array.from({ length: n }, () => [1]);
  const pairs = (stride) =>
    Array.from({ length: n }, (_, rank) => rank).filter((rank) => rank % (2 * stride) === stride);
  const up = strides.map((stride) => {
    const before = counts.map((row) => [...row]);
    const sends = pairs(stride).map((rank) => ({ from: rank, to: rank - stride, chunk: 0 }));
    for (const { from, to } of sends) counts[to][0] += counts[from][0];
    return { phase: /** @type {"up"} */ ("up"), sends, counts: before };
  });
  const down = strides.toReversed().map((stride) => {
    const before = counts.map((row) => [...row]);
    const sends = pairs(stride).map((rank) => ({ from: rank - stride, to: rank, chunk: 0 }));
    for (const { from, to } of sends) counts[to][0] = counts[from][0];
    return { phase: /** @type {"down"} */ ("down"), sends, counts: before };
  });
  return [...up, ...down];
}

/**
 * The all-reduce of a bucket in a step: its begin and end in total and per rank, in seconds.
 * @param {any} recording
 * @param {number} stepIndex
 * @param {number} bucket
 */
export function allReduceOf(recording, stepIndex, bucket) {
  const ranks = recording.ranks
    .map((rank) => ({
      rank: rank.rank,
      reduced: rank.steps[stepIndex]?.all_reduces.find((each) => each.bucket === bucket),
    }))
    .filter(({ reduced }) => reduced);
  if (ranks.length === 0) return null;
  const began = Math.min(...ranks.map(({ reduced }) => reduced.began_s));
  const lastBegan = Math.max(...ranks.map(({ reduced }) => reduced.began_s));
  const ended = Math.max(...ranks.map(({ reduced }) => reduced.ended_s));
  return { ranks, began, lastBegan, ended };
}

/**
 * The rounds through shared memory as measured by each rank, in seconds.
 * @param {{ ranks: any[] }} reduced
 * @returns {{ bytes: number, ranks: { rank: number, write: number, wait: number, add: number }[] }[]}
 */
export function measuredRounds({ ranks }) {
  const number = Math.min(...ranks.map(({ reduced }) => reduced.rounds.length));
  return Array.from({ length: number }, (_, index) => ({
    bytes: ranks[0].reduced.rounds[index][4],
    ranks: ranks.map(({ rank, reduced }) => {
      const [began, written, met, ended] = reduced.rounds[index];
      return { rank, write: written - began, wait: met - written, add: ended - met };
    }),
  }));
}
