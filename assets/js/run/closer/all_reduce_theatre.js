// All-reduce theatre: this run's own bucket on its way through all ranks, round by round.

import { el, freeId, guarded, setText, show } from "../../shared/dom.js";
import { bytes, count } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { Player } from "./theatre/player.js";
import { Recordings } from "./theatre/recordings.js";
import { MOST_RANKS, RoundPicture } from "./theatre/round_picture.js";
import { allReduceOf, measuredRounds, ringEnd, ringRounds, treeRounds } from "./theatre/rounds.js";
import {
  memoryNotes,
  memoryWords,
  ringTable,
  ringWords,
  roundsTable,
  treeWords,
  wayWords,
  wholeWords,
} from "./theatre/round_words.js";

const SECONDS_A_ROUND = 2.5;
const LONGEST_S = 30;
const PHASES = 3;
const MOST_WIDTH = 46;

/**
 * Makes the instrument for a run.
 * @param {string} runId
 * @param {any} summary
 */
export function makeAllReduceTheatre(runId, summary) {
  return new AllReduceTheatre(runId, summary);
}

class AllReduceTheatre {
  constructor(runId, summary) {
    this.name = "all-reduce-theatre";
    this.title = "All-reduce theatre: how a bucket is averaged";
    this.isOffered = summary.config.num_nodes * summary.config.nproc_per_node > 1;
    this.recording = null;
    this.problem = "";
    this.scene = null;
    this.recordings = new Recordings(runId, summary, {
      name: "All-reduce theatre",
      onChange: (recording, problem) => this.show(recording, problem),
    });
    this.player = new Player({
      name: "All-reduce theatre",
      seconds: SECONDS_A_ROUND,
      onMove: (share, isPlaying) => this.moveTo(share, isPlaying),
    });
    this.picture = new RoundPicture();
    this.stage = el("div", { class: "ddp-theatre-stage" }, this.picture.element);
    this.nothing = el("p", { class: "ddp-empty" }, "Looking for recordings …");
    this.layOut();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.stage);
  }

  layOut() {
    const id = freeId("ddp-theatre-bucket");
    this.bucketSelect = el("select", {
      id,
      class: "ddp-theatre-step",
      onchange: () => this.chooseBucket(Number(this.bucketSelect.value)),
    });
    this.way = el("p", {});
    this.whole = el("p", {});
    this.now = el("p", { class: "ddp-theatre-round" });
    this.tables = el("div", { class: "ddp-theatre-tables" });
    this.shown = el(
      "div",
      { class: "ddp-theatre-shown", hidden: true },
      this.way,
      el(
        "div",
        { class: "ddp-theatre-bar" },
        el("label", { class: "ddp-from", for: id }, "Bucket"),
        this.bucketSelect,
        this.player.element,
      ),
      this.stage,
      this.now,
      this.whole,
      this.tables,
    );
    this.element = el(
      "div",
      { class: "ddp-theatre" },
      el(
        "p",
        { class: "ddp-caption" },
        "An ",
        term("all-reduce"),
        " leaves the same average on every rank. This is one of this run's own ",
        term("bucket", "buckets"),
        ", from a ",
        term("recording"),
        ". A number in a chunk says of how many ranks it is the sum.",
      ),
      this.recordings.element,
      this.nothing,
      this.shown,
    );
  }

  open() {
    this.recordings.open();
  }

  update(payload) {
    this.recordings.update(payload);
    if (!this.recording && this.recordings.isOpen) this.sayNothing();
  }

  close() {
    this.player.close();
    this.recordings.close();
    this.resized.disconnect();
  }

  show(recording, problem) {
    const hasBuckets = recording?.ranks.some(({ steps }) =>
      steps.some((step) => step.all_reduces.length > 0),
    );
    this.recording = hasBuckets ? recording : null;
    this.problem = recording && !hasBuckets ? NO_BUCKETS : problem;
    this.scene = null;
    show(this.shown, Boolean(hasBuckets));
    show(this.nothing, !hasBuckets);
    if (hasBuckets) guarded(this.element, () => this.showRecording());
    else this.sayNothing();
  }

  sayNothing() {
    setText(this.nothing, this.problem || this.recordings.howTo());
  }

  showRecording() {
    const { buckets, all_reduce: allReduce, algorithm, world_size: num } = this.recording;
    this.bucketSelect.replaceChildren(
      ...buckets.map((bucket, number) =>
        el("option", { value: number }, `${number} (${bytes(bucket.bytes)})`),
      ),
    );
    const tooMany = num > MOST_RANKS ? ` Drawn are ${MOST_RANKS} ranks; this run has ${count(num)}.` : "";
    setText(this.way, wayWords(allReduce, algorithm, num) + tooMany);
    this.chooseBucket(0);
  }

  chooseBucket(number) {
    this.bucketSelect.value = String(number);
    const { recording } = this;
    // The first recorded step has begun in the middle of whatever was before.
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
    const width = this.stage.clientWidth;
    if (!this.scene || width === 0) return;
    const rem = Number.parseFloat(getComputedStyle(this.stage).fontSize);
    this.scene.draw(this.picture, this.player.share, Math.min(width, MOST_WIDTH * rem), rem);
  }
}

const OVER =
  "Every rank has the whole sum: the average, for each had divided its gradients by the number of ranks.";
const NO_BUCKETS =
  "The recorded steps have no bucket of gradients: this strategy averages them in other collectives, which the step theatre draws.";

/** Which of `num` acts a share of the whole is in, and how far; at the end: `num`, 0. */
function actOf(share, num) {
  const act = Math.min(num, Math.floor(share * num + 1e-6));
  return { act, progress: Math.max(0, share * num - act) };
}

function sceneOf(recording, reduced, bucket) {
  return recording.is_blocking ? memoryScene(reduced) : ruledScene(recording, reduced, bucket);
}

/** Along a ring, or a tree where that was used: what is drawn follows the rule. */
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
      picture.drawRing(state, width, rem, `${count(worldSize)} ranks; the words below say the round`);
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
      const label = `Memory that ${count(reduced.ranks.length)} ranks share; the words below say the round`;
      const state = isOver
        ? { num: numRanks, phase: PHASES, progress: 0, notes: [] }
        : { num: numRanks, phase, progress, notes: memoryNotes({ round, phase, rounds }) };
      picture.drawMemory(state, width, rem, label);
    },
  };
}
