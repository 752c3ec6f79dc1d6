// All-reduce theatre: shows how a bucket of this run is averaged across all ranks, round by round.

import { el, setText } from "../../../shared/dom.js";
import { bytes, count } from "../../../shared/format.js";
import { term } from "../../../shared/terms.js";
import { MOST_RANKS, RoundPicture } from "./round_picture.js";
import {
  allReduceOf,
  measuredRounds,
  memoryNotes,
  memoryWords,
  ringEnd,
  ringRounds,
  ringTable,
  ringWords,
  roundsTable,
  treeRounds,
  treeWords,
  wayWords,
  wholeWords,
} from "./rounds.js";
import { Theatre } from "./theatre.js";

// The scene of a bucket in the all-reduce theatre: rounds of a ring or a tree, or measured rounds through
// shared memory.

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
function sceneOf(recording, reduced, bucket) {
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

const SECONDS_A_ROUND = 2.5;
const LONGEST_S = 30;
const MAX_WIDTH = 46;
const NO_BUCKETS =
  "The recorded steps have no bucket of gradients: this strategy averages them in other collectives, which the step theatre draws.";

/**
 * Creates the instrument for a run.
 * @param {string} runId
 * @param {any} summary
 */
export function makeAllReduceTheatre(runId, summary) {
  return new AllReduceTheatre(runId, summary);
}

class AllReduceTheatre extends Theatre {
  constructor(runId, summary) {
    super(runId, summary, {
      name: "all-reduce-theatre",
      title: "All-reduce theatre: how a bucket is averaged",
      isOffered: summary.config.num_nodes * summary.config.nproc_per_node > 1,
      seconds: SECONDS_A_ROUND,
      picture: new RoundPicture(),
      lacks: (recording) => (hasBuckets(recording) ? "" : NO_BUCKETS),
      onRecording: () => this.showRecording(),
      onMove: (share, isPlaying) => this.moveTo(share, isPlaying),
      onResize: () => this.draw(),
    });
    this.scene = null;
    this.layOut();
  }

  layOut() {
    this.way = el("p", {});
    this.whole = el("p", {});
    this.now = el("p", { class: "ddp-theatre-round" });
    this.arrange(
      [
        "An ",
        term("all-reduce"),
        " leaves the same average on every rank. This is one of this run's own ",
        term("bucket", "buckets"),
        ", from a ",
        term("recording"),
        ". The number in a chunk shows how many ranks are summed in it.",
      ],
      [
        this.way,
        this.bar("Bucket", (number) => this.chooseBucket(number)),
        this.stage,
        this.now,
        this.whole,
        this.tables,
      ],
    );
  }

  showRecording() {
    const { buckets, all_reduce: allReduce, algorithm, world_size: num } = this.recording;
    this.choice.replaceChildren(
      ...buckets.map((bucket, number) =>
        el("option", { value: number }, `${number} (${bytes(bucket.bytes)})`),
      ),
    );
    const tooMany = num > MOST_RANKS ? ` ${MOST_RANKS} ranks are drawn; this run has ${count(num)}.` : "";
    setText(this.way, wayWords(allReduce, algorithm, num) + tooMany);
    this.chooseBucket(0);
  }

  chooseBucket(number) {
    this.choice.value = String(number);
    const { recording } = this;
    // The first recorded step begins in the middle of earlier work: use the second one if there is one.
    const step = Math.min(1, recording.num_steps - 1);
    const reduced = allReduceOf(recording, step, number);
    this.scene = reduced && sceneOf(recording, reduced, number);
    if (!reduced || !this.scene) {
      setText(this.whole, "This bucket was not averaged in the recorded step.");
      return;
    }
    setText(this.whole, wholeWords(reduced));
    this.tables.replaceChildren(this.scene.table());
    const { num } = this.scene;
    this.player.seconds = Math.min(LONGEST_S, SECONDS_A_ROUND * num);
    this.player.setBorders(Array.from({ length: num + 1 }, (_, index) => index / num));
    this.player.goTo(0);
  }

  moveTo(share, isPlaying) {
    if (!this.scene) return;
    this.now.setAttribute("aria-live", isPlaying ? "off" : "polite");
    const words = this.scene.words(share);
    setText(this.now, words);
    this.player.say(words);
    this.draw();
  }

  draw() {
    const { width, rem } = this.room;
    if (!this.scene || width === 0) return;
    this.scene.draw(this.picture, this.player.share, Math.min(width, MAX_WIDTH * rem), rem);
  }
}

function hasBuckets({ ranks }) {
  return ranks.some(({ steps }) => steps.some((step) => step.all_reduces.length > 0));
}
