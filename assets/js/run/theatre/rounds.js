// The rounds of an all-reduce: by the rule of the ring or the tree, or as measured through shared memory; and
// their texts.

import { bytes, count, shortTime } from "../../shared/format.js";
import { scrollingTable } from "./theatre.js";
import { tableRow } from "../../shared/widgets.js";

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

// The texts of the all-reduce theatre: the algorithm, the measurements, and the computed values.

/** How gradients were averaged. */
export function methodText(allReduce, algorithm, num) {
  if (allReduce === "shared_memory") {
    return "Through shared memory: each rank writes a piece of its gradients into memory that all ranks can read, waits until all have done so, and adds up the pieces in rank order. Every round was measured.";
  }
  const rule = `${count(2 * (num - 1))} rounds of one chunk each`;
  if (allReduce === "gloo") {
    return `Over gloo, which uses a ring by default: ${rule}. The total was measured; the rounds are computed from the ring's rule.`;
  }
  if (algorithm === "tree") {
    return "Over NCCL, whose kernel names show a tree: the sums go up to one rank and back down. The total was measured; the rounds are computed from the rule of one binary tree, whereas NCCL has two and sends small pieces.";
  }
  if (algorithm === "ring") {
    return `Over NCCL, whose kernel names show a ring: ${rule}. The total was measured; the rounds are computed from the ring's rule.`;
  }
  return `Over NCCL, which chooses between rings and trees for each size and does not report which: a ring is drawn, ${rule}, computed from its rule. Only the total was measured.`;
}

/** The measured time of a bucket's all-reduce, per rank and in total. */
export function totalTimeText({ ranks, began, lastBegan, ended }) {
  const each = ranks
    .map(({ rank, reduced }) => `rank ${rank} ${shortTime(reduced.ended_s - reduced.began_s)}`)
    .join(", ");
  const late = lastBegan - began;
  return `Measured: ${shortTime(ended - began)} from the start of the first rank to the end of the last (${each}). For ${shortTime(late)} of this time, the first rank waited for the gradients of the last rank; the averaging itself took ${shortTime(ended - lastBegan)}.`;
}

/** Describes a round of the ring. */
export function ringText({ round, rounds, chunkBytes, roundSeconds }) {
  const { phase, sends } = rounds[round];
  const { from, to, chunk } = sends[0];
  const what =
    phase === "reduce-scatter"
      ? "and the receiver adds it to its own"
      : "and the receiver keeps it: it is a complete sum";
  return `Round ${round + 1} of ${rounds.length} (${phase}): every rank sends one chunk of ${bytes(chunkBytes)} to its neighbour, ${what}. Rank ${from} sends chunk ${chunk} to rank ${to}. About ${shortTime(roundSeconds)}, computed: an even share of the averaging.`;
}

const PHASES = [
  ["write", "every rank writes its piece into the shared memory"],
  ["wait", "every rank waits until all pieces are written"],
  ["add", "every rank adds up the pieces of all ranks, in rank order"],
];

/** Describes a round of the tree. */
export function treeText({ round, rounds, total, roundSeconds }) {
  const { phase, sends } = rounds[round];
  const what = phase === "up" ? "which adds it to its own" : "which keeps it: it is the sum of all";
  const senders = sends.map(({ from, to }) => `rank ${from} to rank ${to}`).join(", ");
  return `Round ${round + 1} of ${rounds.length} (${phase}): ${bytes(total)} go from ${senders}, ${what}. About ${shortTime(roundSeconds)}, computed: an even share of the averaging.`;
}

/** Describes a phase of a round through shared memory. */
export function memoryText({ round, phase, rounds }) {
  const measured = rounds[round];
  const [name, text] = PHASES[phase];
  const times = measured.ranks.map((each) => `rank ${each.rank} ${shortTime(each[name])}`).join(", ");
  return `Round ${round + 1} of ${rounds.length}, ${bytes(measured.bytes)}: ${text}. Measured: ${times}.`;
}

const DOES = ["writes", "waits", "adds up"];

/** The duration of a phase on each rank, short enough for the picture. */
export function memoryNotes({ round, phase, rounds }) {
  const name = PHASES[phase][0];
  return rounds[round].ranks.map((each) => `${DOES[phase]}: ${shortTime(each[name])}`);
}

/** The measured rounds, a row per round and rank. */
export function roundsTable(rounds) {
  const rows = rounds.flatMap(({ bytes: size, ranks }, index) =>
    ranks.map((each) =>
      tableRow(index + 1, [bytes(size), each.rank, ...[each.write, each.wait, each.add].map(shortTime)]),
    ),
  );
  const heads = ["round", "bytes", "rank", "write", "wait", "add up"];
  return scrollingTable("The rounds, measured", heads, rows);
}

/** The values computed from the rule of the ring or the tree; `chunkBytes` is null for a tree. */
export function ringTable({ num, numRounds, chunkBytes, total, roundSeconds }) {
  const isRing = chunkBytes !== null;
  const rule = isRing
    ? "computed from the ring's rule: 2 × (ranks − 1)"
    : "computed from the tree's rule: its levels twice";
  const ofRing = [
    ["bytes of a chunk", bytes(chunkBytes), "computed: the bucket by the ranks"],
    ["bytes each rank sends", bytes(numRounds * chunkBytes), "computed: rounds × chunk"],
  ];
  const rows = [
    ["bytes of the bucket", bytes(total), "measured"],
    ["ranks", count(num), "measured"],
    ["rounds", count(numRounds), rule],
    ...(isRing ? ofRing : []),
    ["time of a round", shortTime(roundSeconds), "computed: an even share of the averaging"],
  ].map(([text, ...others]) => tableRow(text, others));
  const heads = ["what", "value", "from where"];
  return scrollingTable("Measured and computed", heads, rows, "ddp-theatre-words ddp-theatre-ring-table");
}
