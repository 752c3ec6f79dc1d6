// All-reduce theatre: shows how a bucket of this run is averaged across all ranks, round by round.

import { svg, el, setText } from "../../shared/dom.js";
import { bytes, count } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { offerOptions } from "../../shared/widgets.js";
import {
  allReduceOf,
  measuredRounds,
  memoryNotes,
  memoryText,
  ringEnd,
  ringRounds,
  ringTable,
  ringText,
  roundsTable,
  treeRounds,
  treeText,
  methodText,
  totalTimeText,
} from "./rounds.js";
import { Theatre, sizePicture } from "./theatre.js";
import { TEXT, svgText } from "./lanes.js";

const CELL = 2.1;
const BOX_PADDING = 0.5;
const NAME_HEIGHT = 1.5;
export const MOST_RANKS = 8;

/**
 * Positions the boxes in two rows: the ring runs along the first row and back along the second. Two ranks
 * share a row.
 */
function placesOf(num, width, boxWidth, boxHeight, rem) {
  const inFirst = num <= 2 ? num : Math.ceil(num / 2);
  return Array.from({ length: num }, (_, rank) => {
    const isFirst = rank < inFirst;
    const inRow = isFirst ? inFirst : num - inFirst;
    const column = isFirst ? rank : num - 1 - rank;
    return {
      x: ((column + 0.5) * width) / inRow - boxWidth / 2,
      y: isFirst ? 0 : boxHeight + 4 * rem,
    };
  });
}

class RoundPicture {
  constructor() {
    this.element = svg("svg", { class: "ddp-theatre-lanes ddp-theatre-ring", role: "img" });
  }

  /**
   * Draws the state of a ring or a tree and the chunks in transit.
   * @param {{ counts: number[][], sends: any[], progress: number, isAdding: boolean }} state
   * @param {number} width
   * @param {number} rem
   * @param {string} label
   */
  drawRing({ counts, sends, progress, isAdding }, width, rem, label) {
    const [num, numChunks] = [counts.length, counts[0].length];
    const cell = Math.min(CELL * rem, (width / Math.ceil(num / 2) - 2.5 * rem) / numChunks);
    const boxWidth = Math.max(4 * rem, numChunks * cell + 2 * BOX_PADDING * rem);
    const boxHeight = (NAME_HEIGHT + 2 * BOX_PADDING) * rem + cell;
    const places = placesOf(num, width, boxWidth, boxHeight, rem);
    const height = Math.max(...places.map(({ y }) => y)) + boxHeight + (num <= 2 ? 3 * rem : 0.2 * rem);
    sizePicture(this.element, width, height, label);
    const cellAt = (rank, chunk) => ({
      x: places[rank].x + BOX_PADDING * rem + chunk * cell,
      y: places[rank].y + (NAME_HEIGHT + BOX_PADDING) * rem,
    });
    const boxes = counts.flatMap((chunks, rank) => [
      box(places[rank], boxWidth, boxHeight, `rank ${rank}`, rem),
      ...chunks.flatMap((summed, chunk) => cellOf(cellAt(rank, chunk), cell, { summed, num }, rem)),
    ]);
    const motion = isAdding ? "adding" : "handing";
    const move = ({ from, to, chunk }) => {
      const [start, end] = [cellAt(from, chunk), cellAt(to, chunk)];
      const bow = num <= 2 ? (from === 0 ? -1 : 1) * 1.6 * rem * Math.sin(Math.PI * progress) : 0.25 * rem;
      const at = between(start, end, progress, 0, bow);
      const [x1, y1, x2, y2] = [start.x, start.y, end.x, end.y].map((place) => place + cell / 2);
      const way = svg("line", { x1, y1, x2, y2, class: "ddp-theatre-way" });
      return [way, ...cellOf(at, cell, { summed: counts[from][chunk], num, motion }, rem)];
    };
    const moving = progress > 0 && progress < 1 ? sends.flatMap(move) : [];
    this.element.replaceChildren(...boxes, ...moving);
  }

  /**
   * Draws one phase of a round through shared memory.
   * @param {{ num: number, phase: number, progress: number, notes: string[] }} state `phase` is 0: write, 1:
   * wait, 2: add, 3: done; `notes`: a text per rank with the duration of the phase
   * @param {number} width
   * @param {number} rem
   * @param {string} label
   */
  drawMemory({ num, phase, progress, notes }, width, rem, label) {
    const cell = Math.min(CELL * rem * 1.4, (width - 2 * rem) / num - rem);
    const boxWidth = cell + 2 * BOX_PADDING * rem;
    const boxHeight = (NAME_HEIGHT + 2 * BOX_PADDING) * rem + cell;
    const gap = (width - num * boxWidth) / (num + 1);
    const memoryY = boxHeight + 4 * rem;
    sizePicture(this.element, width, memoryY + cell + 2.8 * rem, label);
    const x = (rank) => gap + rank * (boxWidth + gap) + BOX_PADDING * rem;
    const slotY = memoryY + 0.5 * rem;
    const own = (rank) => ({ x: x(rank), y: (NAME_HEIGHT + BOX_PADDING) * rem });
    const slot = (rank) => ({ x: x(rank), y: slotY });
    const share = { width: width - 2, height: cell + 2.4 * rem, rx: 8, class: "ddp-theatre-box" };
    const name = "memory that all ranks of this machine share";
    const memory = [
      svg("rect", { x: 1, y: memoryY, ...share }),
      svgText(name, 0.7 * rem, slotY + cell + 1.3 * rem, rem, "ddp-theatre-soft"),
    ];
    const all = Array.from({ length: num }, (_, rank) => rank);
    const boxes = all.flatMap((rank) => [
      box({ x: x(rank) - BOX_PADDING * rem, y: 0 }, boxWidth, boxHeight, `rank ${rank}`, rem),
      ...cellOf(own(rank), cell, { summed: phase > 2 ? num : 1, num }, rem),
      svg("rect", { ...slot(rank), width: cell, height: cell, rx: 4, class: "ddp-theatre-slot" }),
      svgText(notes[rank] ?? "", x(rank) - BOX_PADDING * rem, boxHeight + 1.2 * rem, rem, "ddp-theatre-soft"),
      ...(phase > 0 ? cellOf(slot(rank), cell, { summed: 1, num }, rem) : []),
    ]);
    const moved = { summed: 1, num, motion: "adding" };
    const write = (rank) => cellOf(between(own(rank), slot(rank), progress), cell, moved, rem);
    // Each rank adds the pieces of all ranks in rank order.
    const inset = 0.15 * cell;
    const add = (rank) =>
      all.flatMap((from) =>
        cellOf(between(slot(from), own(rank), progress, inset, inset), cell * 0.7, moved, rem),
      );
    const moving = all.flatMap({ 0: write, 2: add }[phase] ?? (() => []));
    this.element.replaceChildren(...memory, ...boxes, ...moving);
  }
}

/** The place at a fraction of the way from `start` to `end`, moved to the right and down. */
function between(start, end, progress, right = 0, down = 0) {
  return {
    x: start.x + (end.x - start.x) * progress + right,
    y: start.y + (end.y - start.y) * progress + down,
  };
}

function box({ x, y }, width, height, title, rem) {
  const size = { width: width - 1, height: height - 1, rx: 8 };
  const frame = svg("rect", { x: x + 0.5, y: y + 0.5, ...size, class: "ddp-theatre-box" });
  return svg("g", {}, frame, svgText(title, x + BOX_PADDING * rem, y + 1.35 * rem, rem, "ddp-theatre-rank"));
}

/** A chunk with the number of ranks it is the sum of; complete sums have another colour. */
function cellOf({ x, y }, size, { summed, num, motion = "" }, rem) {
  const whole = summed === num && num > 1 ? "whole" : "none";
  const className = `ddp-theatre-cell ddp-theatre-cell-${whole} ddp-theatre-cell-${motion || "still"}`;
  const center = { x: x + size / 2, y: y + size / 2 + 0.3 * rem, "text-anchor": "middle" };
  const counted = `ddp-theatre-count ddp-theatre-count-${whole}`;
  const letters = { "font-size": Math.min(TEXT * rem, size * 0.6), class: counted };
  return [
    svg("rect", { x: x + 1, y: y + 1, width: size - 2, height: size - 2, rx: 4, class: className }),
    svg("text", { ...center, ...letters }, String(summed)),
  ];
}

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
    describe: (share) => {
      const { act } = actOf(share, drawn.length);
      if (act === drawn.length) return OVER;
      const drawing = { round: act, rounds: drawn, roundSeconds };
      return isTree ? treeText({ ...drawing, total }) : ringText({ ...drawing, chunkBytes });
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
    describe: (share) => {
      const { round, phase, isOver } = place(share);
      return isOver ? OVER : memoryText({ round, phase, rounds });
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

export class AllReduceTheatre extends Theatre {
  constructor(runId, summary) {
    super(runId, summary, {
      name: "all-reduce-theatre",
      title: "All-reduce theatre: how a bucket is averaged",
      isOffered: summary.config.num_nodes * summary.config.nproc_per_node > 1,
      seconds: SECONDS_A_ROUND,
      picture: new RoundPicture(),
    });
    this.scene = null;
    this.layOut();
  }

  layOut() {
    this.way = el("p", {});
    this.whole = el("p", {});
    this.now = el("p", { class: "ddp-theatre-round" });
    const bar = this.bar("Bucket", (number) => this.chooseBucket(number));
    const caption = [
      "An ",
      term("all-reduce"),
      " leaves the same average on every rank. This is one of this run's own ",
      term("bucket", "buckets"),
      ", from a ",
      term("recording"),
      ". The number in a chunk shows how many ranks are summed in it.",
    ];
    this.arrange(caption, [this.way, bar, this.stage, this.now, this.whole, this.tables]);
  }

  /** @override */
  lacks({ ranks }) {
    const hasBuckets = ranks.some(({ steps }) => steps.some((step) => step.all_reduces.length > 0));
    return hasBuckets ? "" : NO_BUCKETS;
  }

  /** @override */
  showRecording() {
    const { buckets, all_reduce: allReduce, algorithm, world_size: num } = this.recording;
    offerOptions(
      this.choice,
      buckets.map((bucket, number) => [number, `${number} (${bytes(bucket.bytes)})`]),
    );
    const tooMany = num > MOST_RANKS ? ` ${MOST_RANKS} ranks are drawn; this run has ${count(num)}.` : "";
    setText(this.way, methodText(allReduce, algorithm, num) + tooMany);
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
    setText(this.whole, totalTimeText(reduced));
    this.tables.replaceChildren(this.scene.table());
    const { num } = this.scene;
    this.player.seconds = Math.min(LONGEST_S, SECONDS_A_ROUND * num);
    this.player.borders = Array.from({ length: num + 1 }, (_, index) => index / num);
    this.player.goTo(0);
  }

  /** @override */
  moveTo(share, isPlaying) {
    if (!this.scene) return;
    this.now.setAttribute("aria-live", isPlaying ? "off" : "polite");
    const text = this.scene.describe(share);
    setText(this.now, text);
    this.player.say(text);
    this.draw();
  }

  /** @override */
  draw() {
    const { width, rem } = this.room;
    if (!this.scene || width === 0) return;
    this.scene.draw(this.picture, this.player.share, Math.min(width, MAX_WIDTH * rem), rem);
  }
}
