// The timeline of a recorded step: the blocks of each rank's lanes over a common time axis, and their drawing.

import { svg } from "../../shared/dom.js";
import { bytes, shortTime } from "../../shared/format.js";
import { sizePicture } from "./theatre.js";
import { ticks } from "../../charts/plot.js";

/**
 * A block of a lane: `kind` is a part of the step, "reduce", "wait" or "collective"; times in seconds.
 * @typedef {{ kind: string, text: string, began: number, ended: number, bucket?: number, size?: number }} Piece
 */
/**
 * @typedef {{ rank: number, host: string, compute: Piece[], collectives: Piece[] }} RankLanes
 */

/** Moments closer than this fraction of the step are merged: they look the same. */
export const MIN_DISTANCE = 1 / 500;

/** @type {Record<string, string>} */
export const PART_WORDS = {
  data: "data",
  forward: "forward",
  backward: "backward",
  both: "forward and backward",
  optimizer: "optimizer",
  other: "the rest of the step",
};

/**
 * The lanes of all ranks in a step, in seconds since the first rank began it.
 * @param {number} index
 * @returns {{ length: number, ranks: RankLanes[] }}
 */
export function lanesOf(recording, index) {
  const steps = recording.ranks.map((rank) => ({ rank, step: rank.steps[index] })).filter(({ step }) => step);
  const origin = Math.min(...steps.map(({ step }) => step.began_s));
  const length = Math.max(...steps.map(({ step }) => step.ended_s)) - origin;
  return {
    length: Math.max(length, 1e-9),
    ranks: steps.map(({ rank, step }) => ({
      rank: rank.rank,
      host: rank.host,
      compute: computing(step, origin, recording.is_blocking),
      collectives: communicating(step, origin, recording.buckets),
    })),
  };
}

/** If the computing thread does the all-reduces itself, they interrupt the backward pass. */
function computing(step, origin, isBlocking) {
  const pauses = isBlocking ? step.all_reduces.map((each) => [each.began_s, each.ended_s]) : [];
  return step.parts.flatMap(([name, began, ended]) =>
    without(began, ended, name === "backward" ? pauses : []).map(([from, to]) => ({
      kind: name,
      text: PART_WORDS[name] ?? name,
      began: from - origin,
      ended: to - origin,
    })),
  );
}

/**
 * The parts of a span that no other span covers.
 * @param {number} began
 * @param {number} ended
 * @param {number[][]} others
 * @returns {number[][]}
 */
export function without(began, ended, others) {
  const left = [];
  let from = began;
  for (const [start, end] of [...others].sort((a, b) => a[0] - b[0])) {
    if (end <= from || start >= ended) continue;
    if (start > from) left.push([from, start]);
    from = Math.max(from, end);
  }
  if (from < ended) left.push([from, ended]);
  return left;
}

function communicating(step, origin, buckets) {
  const reduces = step.all_reduces.flatMap((each) => {
    const whole = {
      kind: "reduce",
      text: `all-reduce of bucket ${each.bucket}`,
      bucket: each.bucket,
      size: buckets[each.bucket]?.bytes,
      began: each.began_s - origin,
      ended: each.ended_s - origin,
    };
    const waits = each.rounds.map(([, written, met]) => ({
      kind: "wait",
      text: `waits for the other ranks in bucket ${each.bucket}`,
      bucket: each.bucket,
      began: written - origin,
      ended: met - origin,
    }));
    return [whole, ...waits];
  });
  const others = step.collectives.map((each) => ({
    kind: "collective",
    text: shortName(each.name),
    began: each.began_s - origin,
    ended: each.ended_s - origin,
  }));
  return [...reduces, ...others].toSorted((a, b) => a.began - b.began);
}

/**
 * gloo:all_gather -> all-gather
 * @param {string} name
 */
export function shortName(name) {
  return name.replace(/^\w+:/, "").replaceAll("_", "-");
}

/**
 * The moments at which a block begins or ends, in order; moments that look the same are merged.
 * @param {{ length: number, ranks: RankLanes[] }} lanes
 * @returns {number[]}
 */
export function bordersOf({ length, ranks }) {
  const all = ranks
    .flatMap(({ compute, collectives }) => [...compute, ...collectives])
    .flatMap(({ began, ended }) => [began, ended]);
  const apart = length * MIN_DISTANCE;
  /** @type {number[]} */
  const moments = [];
  for (const moment of [0, ...all].toSorted((a, b) => a - b)) {
    const isNew = moment - (moments.at(-1) ?? -1) > apart;
    if (isNew && moment >= 0 && moment < length - apart) moments.push(moment);
  }
  moments.push(length);
  return moments;
}

/**
 * Describes a rank's activity at a moment: its computation and any concurrent communication.
 * @param {RankLanes} lanes
 * @param {number} moment
 */
export function activityAt({ compute, collectives }, moment) {
  const isNow = ({ began, ended }) => began <= moment && moment < ended;
  const now = collectives.filter(isNow);
  const waiting = now.find(({ kind }) => kind === "wait");
  const reducing = now.filter(({ kind }) => kind === "reduce" || kind === "collective");
  const block = compute.find(isNow);
  if (waiting) return waiting.text;
  const transfers = reducing.map((transfer) => transfer.text).join(", ");
  if (block && transfers) return `${block.text}, and at the same time ${transfers}`;
  return block?.text ?? (transfers || "between two steps");
}

// Draws the lanes of a step: the computation and the communication of each rank over a common time axis.

const LABEL_WIDTH = 4.6;
const LANE_HEIGHT = 1.7;
const GAP = 0.35;
const RANK_GAP = 0.9;
const AXIS_HEIGHT = 1.8;
/** The minimum width per letter, in rem, for a label inside a block. */
const LETTER = 0.56;
/** The size of texts in a picture, in rem. */
export const TEXT = 0.82;
export const MOST_RANKS = 16;

const PATTERN = "ddp-theatre-waiting";

export class LanePicture {
  constructor() {
    this.playhead = svg("line", { class: "ddp-theatre-playhead" });
    this.element = svg("svg", { class: "ddp-theatre-lanes", role: "img" });
  }

  /**
   * Draws the picture from scratch.
   * @param {{ ranks: RankLanes[], length: number }} lanes `length` in seconds
   * @param {number} width pixels
   * @param {number} rem pixels
   * @param {string} label
   */
  draw({ ranks, length }, width, rem, label) {
    const shown = ranks.slice(0, MOST_RANKS);
    const left = LABEL_WIDTH * rem;
    const drawnWidth = Math.max(40, width - left - 0.2 * rem);
    const xOf = (moment) => left + (drawnWidth * moment) / length;
    const rankHeight = (2 * LANE_HEIGHT + GAP) * rem;
    const height = shown.length * (rankHeight + RANK_GAP * rem) + AXIS_HEIGHT * rem;
    this.xOf = xOf;
    sizePicture(this.element, width, height, label);
    const bottom = height - AXIS_HEIGHT * rem;
    this.playhead.setAttribute("y1", "0");
    this.playhead.setAttribute("y2", String(bottom));
    this.element.replaceChildren(
      waitingPattern(),
      ...axis(length, xOf, bottom, rem, drawnWidth),
      ...shown.flatMap((rank, index) => {
        const top = index * (rankHeight + RANK_GAP * rem);
        return drawRank(rank, top, xOf, rem, { left, room: drawnWidth });
      }),
      this.playhead,
    );
  }

  moveTo(moment) {
    const x = this.xOf?.(moment) ?? 0;
    this.playhead.setAttribute("x1", String(x));
    this.playhead.setAttribute("x2", String(x));
  }
}

function waitingPattern() {
  return svg(
    "defs",
    {},
    svg(
      "pattern",
      { id: PATTERN, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 8, height: 8, class: "ddp-theatre-wait-ground" }),
      svg("rect", { width: 2, height: 8, class: "ddp-theatre-wait-line" }),
    ),
  );
}

function drawRank({ rank, compute, collectives }, top, xOf, rem, { left, room: drawnWidth }) {
  const high = LANE_HEIGHT * rem;
  const second = top + high + GAP * rem;
  const ground = (y) =>
    svg("rect", { x: left, y, width: drawnWidth, height: high, class: "ddp-theatre-ground" });
  return [
    ground(top),
    ground(second),
    svgText(`rank ${rank}`, 0, top + high * 0.68, rem, "ddp-theatre-rank"),
    svgText(
      collectives.some(({ kind }) => kind === "collective") ? "collectives" : "all-reduce",
      0,
      second + high * 0.68,
      rem * 0.92,
      "ddp-theatre-soft",
    ),
    ...compute.map((piece) => drawPiece(piece, top, high, xOf, rem)),
    ...placePieces(collectives, second, high).map(({ piece, y, height }) =>
      drawPiece(piece, y, height, xOf, rem),
    ),
  ];
}

/** Positions the blocks of a lane; overlapping ones use the upper and the lower half. */
function placePieces(pieces, y, high) {
  const half = high / 2;
  let [upperEnded, isHalved] = [-1, false];
  const placed = pieces.map((piece) => {
    const isLower = piece.kind !== "wait" && piece.began < upperEnded;
    if (piece.kind !== "wait" && !isLower) upperEnded = piece.ended;
    isHalved ||= isLower;
    return { piece, isLower };
  });
  return placed.map(({ piece, isLower }) => ({
    piece,
    y: isLower ? y + half : y,
    height: isHalved ? half : high,
  }));
}

function drawPiece(piece, y, height, xOf, rem) {
  const x = xOf(piece.began);
  // Very short blocks are drawn at least one pixel wide.
  const width = Math.max(1, xOf(piece.ended) - x);
  const label = labelOf(piece, (some) => some.length * LETTER * TEXT * rem + 8 < width);
  const title = svg("title", {}, `${piece.text}, ${shortTime(piece.ended - piece.began)}`);
  const block = svg("rect", {
    x,
    y: piece.kind === "wait" ? y + height * 0.55 : y,
    width,
    height: piece.kind === "wait" ? height * 0.45 : height,
    rx: Math.min(3, width / 2),
    class: `ddp-theatre-piece ddp-theatre-${piece.kind}`,
    ...(piece.kind === "wait" ? { fill: `url(#${PATTERN})` } : {}),
  });
  const group = svg("g", {}, title, block);
  if (label) {
    // Above the hatched waiting time, if there is any.
    const high = piece.kind === "reduce" && height > 1.2 * rem ? 0.46 : 0.7;
    group.append(
      svgText(label, x + 5, y + height * high, rem, `ddp-theatre-on ddp-theatre-on-${piece.kind}`),
    );
  }
  return group;
}

/** The label of a block: the longest that fits, or nothing. */
function labelOf({ kind, bucket, text: activity, size }, fits) {
  if (kind === "wait") return "";
  const all =
    kind === "reduce" ? [`bucket ${bucket}, ${bytes(size)}`, `bucket ${bucket}`, bucket] : [activity];
  return all.map(String).find(fits) ?? "";
}

/** A text in a picture. */
export function svgText(content, x, y, rem, className) {
  return svg("text", { x, y, "font-size": TEXT * rem, class: className }, content);
}

function axis(length, xOf, y, rem, drawnWidth) {
  const most = Math.max(2, Math.min(8, Math.floor(drawnWidth / (5.5 * rem))));
  const marks = [];
  for (const { place: moment } of ticks(0, length, most)) {
    const x = xOf(moment);
    // Keep the last label inside the picture.
    const isLast = x > xOf(length) - 2 * rem;
    const anchor = isLast ? "end" : "middle";
    marks.push(
      svg("line", { x1: x, x2: x, y1: 0, y2: y, class: "ddp-theatre-grid" }),
      svg(
        "text",
        {
          x,
          y: y + 1.2 * rem,
          "font-size": TEXT * rem,
          class: "ddp-theatre-soft",
          "text-anchor": moment === 0 ? "start" : anchor,
        },
        moment === 0 ? "0" : shortTime(moment),
      ),
    );
  }
  return marks;
}
