// How a bucket goes round: the rule of the ring, and the rounds through shared memory as they were measured.

/**
 * One send of a ring's round.
 * @typedef {{ from: number, to: number, chunk: number }} Send
 */

/**
 * The rounds of a ring all-reduce of n ranks, by its rule: n−1 rounds in which chunks are added up, and n−1 in
 * which they are handed on; `counts[rank][chunk]` says of how many ranks a chunk is the sum, before the round.
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
 * The state after the last round: every chunk of every rank is the sum of all.
 * @param {number} n
 */
export function ringEnd(n) {
  return Array.from({ length: n }, () => Array.from({ length: n }, () => n));
}

/**
 * The rounds of an all-reduce along a binary tree: the sums go up to rank 0 and come down again, whole.
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
 * One bucket's all-reduce in one step, over all ranks: begin and end of the whole, and of each rank.
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
 * The rounds through shared memory as each rank measured them: seconds to write, wait and add up.
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
