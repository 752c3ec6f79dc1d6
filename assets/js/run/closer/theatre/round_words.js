// The texts of the all-reduce theatre: the algorithm, the measurements, and the computed values.

import { el } from "../../../shared/dom.js";
import { bytes, count, shortTime } from "../../../shared/format.js";
import { table } from "./step_numbers.js";

/** How gradients were averaged. */
export function wayWords(allReduce, algorithm, num) {
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
export function wholeWords({ ranks, began, lastBegan, ended }) {
  const each = ranks
    .map(({ rank, reduced }) => `rank ${rank} ${shortTime(reduced.ended_s - reduced.began_s)}`)
    .join(", ");
  const late = lastBegan - began;
  return `Measured: ${shortTime(ended - began)} from the start of the first rank to the end of the last (${each}). ${shortTime(late)} of this the first rank waited until the last one's gradients were ready; the averaging itself took ${shortTime(ended - lastBegan)}.`;
}

/** Describes a round of the ring. */
export function ringWords({ round, rounds, chunkBytes, roundSeconds }) {
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
export function treeWords({ round, rounds, total, roundSeconds }) {
  const { phase, sends } = rounds[round];
  const what = phase === "up" ? "which adds it to its own" : "which keeps it: it is the sum of all";
  const who = sends.map(({ from, to }) => `rank ${from} to rank ${to}`).join(", ");
  return `Round ${round + 1} of ${rounds.length} (${phase}): ${bytes(total)} go from ${who}, ${what}. About ${shortTime(roundSeconds)}, computed: an even share of the averaging.`;
}

/** Describes a phase of a round through shared memory. */
export function memoryWords({ round, phase, rounds }) {
  const measured = rounds[round];
  const [name, words] = PHASES[phase];
  const times = measured.ranks.map((each) => `rank ${each.rank} ${shortTime(each[name])}`).join(", ");
  return `Round ${round + 1} of ${rounds.length}, ${bytes(measured.bytes)}: ${words}. Measured: ${times}.`;
}

const DOES = ["writes", "waits", "adds up"];

/** The duration of a phase on each rank, short enough for the picture. */
export function memoryNotes({ round, phase, rounds }) {
  const name = PHASES[phase][0];
  return rounds[round].ranks.map((each) => `${DOES[phase]}: ${shortTime(each[name])}`);
}

/** The measured rounds, a row per round and rank. */
export function roundsTable(rounds) {
  const head = el(
    "tr",
    {},
    ["round", "bytes", "rank", "write", "wait", "add up"].map((words) => el("th", { scope: "col" }, words)),
  );
  const rows = rounds.flatMap(({ bytes: size, ranks }, index) =>
    ranks.map((each) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, String(index + 1)),
        el("td", {}, bytes(size)),
        el("td", {}, String(each.rank)),
        [each.write, each.wait, each.add].map((seconds) => el("td", {}, shortTime(seconds))),
      ),
    ),
  );
  return table("The rounds, measured", "ddp-theatre-table", head, rows);
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
  ].map(([words, value, how]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, words),
      el("td", {}, value),
      el("td", { class: "ddp-theatre-names" }, how),
    ),
  );
  const head = el(
    "tr",
    {},
    ["what", "value"].map((words) => el("th", { scope: "col" }, words)),
    el("th", { scope: "col", class: "ddp-theatre-names" }, "from where"),
  );
  return table("Measured and computed", "ddp-theatre-table ddp-theatre-ring-table", head, rows);
}
