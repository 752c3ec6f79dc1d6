// The scene of a bucket in the all-reduce theatre: rounds of a ring or a tree, or measured rounds through
// shared memory.

import { count } from "../../../shared/format.js";
import { MOST_RANKS } from "./round_picture.js";
import { memoryNotes, memoryWords, ringTable, ringWords, roundsTable, treeWords } from "./round_words.js";
import { measuredRounds, ringEnd, ringRounds, treeRounds } from "./rounds.js";

const PHASES = 3;
const OVER =
  "Every rank has the complete sum: the average, because each divided its gradients by the number of ranks.";
/** Returns the index of the act (0 to `num`) at a fraction of the whole, and the progress within that act. */
function actOf(share, num) {
  const act = Math.min(num, Math.floor(share * num + 1e-6));
  return { act, progress: Math.max(0, share * num - act) };
}

/**
 * The scene of a bucket; null if no round was measured.
 * @param {any} recording
 * @param {any} reduced an all-reduce, as returned by `allReduceOf`
 * @param {number} bucket
 */
export function sceneOf(recording, reduced, bucket) {
  return recording.is_blocking ? memoryScene(reduced) : ruledScene(recording, reduced, bucket);
}

/** A ring or a tree: the rounds are computed by the rule of the algorithm. */
function ruledScene({ world_size: worldSize, buckets, algorithm }, reduced, bucket) {
  const total = buckets[bucket].bytes;
  const isTree = algorithm === "tree";
  const roundsOf = isTree ? treeRounds : ringRounds;
  const numRounds = roundsOf(worldSize).length;
  const numDrawn = Math.min(worldSize, MOST_RANKS);
  const drawn = roundsOf(numDrawn);
  const chunkBytes = isTree ? null : total / worldSize;
  const roundSeconds = (reduced.ended - reduced.lastBegan) / numRounds;
  const end = isTree ? ringEnd(numDrawn).map((row) => row.slice(0, 1)) : ringEnd(numDrawn);
  return {
    num: drawn.length,
    table: () => ringTable({ num: worldSize, numRounds, chunkBytes, total, roundSeconds }),
    words: (share) => {
      const { act } = actOf(share, drawn.length);
      if (act === drawn.length) return OVER;
      const about = { round: act, rounds: drawn, roundSeconds };
      return isTree ? treeWords({ ...about, total }) : ringWords({ ...about, chunkBytes });
    },
    draw: (picture, share, width, rem) => {
      const { act, progress } = actOf(share, drawn.length);
      const round = drawn[act];
      const isAdding = round?.phase === "reduce-scatter" || round?.phase === "up";
      const state = round
        ? { counts: round.counts, sends: round.sends, progress, isAdding }
        : { counts: end, sends: [], progress: 0, isAdding: false };
      picture.drawRing(state, width, rem, `${count(worldSize)} ranks; the text below describes the round`);
    },
  };
}

function memoryScene(reduced) {
  const rounds = measuredRounds(reduced);
  const numRanks = Math.min(reduced.ranks.length, MOST_RANKS);
  const num = rounds.length * PHASES;
  if (num === 0) return null;
  const place = (share) => {
    const { act, progress } = actOf(share, num);
    return { round: Math.floor(act / PHASES), phase: act % PHASES, progress, isOver: act === num };
  };
  return {
    num,
    table: () => roundsTable(rounds),
    words: (share) => {
      const { round, phase, isOver } = place(share);
      return isOver ? OVER : memoryWords({ round, phase, rounds });
    },
    draw: (picture, share, width, rem) => {
      const { round, phase, progress, isOver } = place(share);
      const label = `Memory that ${count(reduced.ranks.length)} ranks share; the text below describes the round`;
      const state = isOver
        ? { num: numRanks, phase: PHASES, progress: 0, notes: [] }
        : { num: numRanks, phase, progress, notes: memoryNotes({ round, phase, rounds }) };
      picture.drawMemory(state, width, rem, label);
    },
  };
}
