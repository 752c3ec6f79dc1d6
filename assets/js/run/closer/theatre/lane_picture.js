// Draws the lanes of a step: the computation and the communication of each rank over a common time axis.

import { svg } from "../../../shared/dom.js";
import { bytes, shortTime } from "../../../shared/format.js";

const LABEL_WIDTH = 4.6;
const LANE_HEIGHT = 1.7;
const GAP = 0.35;
const RANK_GAP = 0.9;
const AXIS_HEIGHT = 1.8;
/** The minimum width per letter, in rem, for a label inside a block. */
const LETTER = 0.56;
const TEXT = 0.82;
export const MOST_RANKS = 16;

const PATTERN = "ddp-theatre-waiting";

export class LanePicture {
  constructor() {
    this.playhead = svg("line", { class: "ddp-theatre-playhead" });
    this.element = svg("svg", { class: "ddp-theatre-lanes", role: "img" });
  }

  /**
   * Draws the picture from scratch.
   * @param {{ ranks: import("./lanes.js").RankLanes[], length: number }} lanes `length` in seconds
   * @param {number} width pixels
   * @param {number} rem pixels
   * @param {string} label
   */
  draw({ ranks, length }, width, rem, label) {
    const shown = ranks.slice(0, MOST_RANKS);
    const left = LABEL_WIDTH * rem;
    const room = Math.max(40, width - left - 0.2 * rem);
    const place = (moment) => left + (room * moment) / length;
    const rankHeight = (2 * LANE_HEIGHT + GAP) * rem;
    const height = shown.length * (rankHeight + RANK_GAP * rem) + AXIS_HEIGHT * rem;
    this.place = place;
    this.element.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.element.setAttribute("width", String(width));
    this.element.setAttribute("height", String(height));
    this.element.setAttribute("aria-label", label);
    const bottom = height - AXIS_HEIGHT * rem;
    this.playhead.setAttribute("y1", "0");
    this.playhead.setAttribute("y2", String(bottom));
    this.element.replaceChildren(
      waitingPattern(),
      ...axis(length, place, bottom, rem, room),
      ...shown.flatMap((rank, index) => {
        const top = index * (rankHeight + RANK_GAP * rem);
        return drawRank(rank, top, place, rem, { left, room });
      }),
      this.playhead,
    );
  }

  moveTo(moment) {
    const x = this.place?.(moment) ?? 0;
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

function drawRank({ rank, compute, collectives }, top, place, rem, { left, room }) {
  const high = LANE_HEIGHT * rem;
  const second = top + high + GAP * rem;
  const ground = (y) => svg("rect", { x: left, y, width: room, height: high, class: "ddp-theatre-ground" });
  return [
    ground(top),
    ground(second),
    text(`rank ${rank}`, 0, top + high * 0.68, rem, "ddp-theatre-rank"),
    text(
      collectives.some(({ kind }) => kind === "collective") ? "collectives" : "all-reduce",
      0,
      second + high * 0.68,
      rem * 0.92,
      "ddp-theatre-soft",
    ),
    ...compute.map((piece) => drawPiece(piece, top, high, place, rem)),
    ...placePieces(collectives, second, high).map(({ piece, y, height }) =>
      drawPiece(piece, y, height, place, rem),
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

function drawPiece(piece, y, height, place, rem) {
  const x = place(piece.began);
  // Very short blocks are drawn at least one pixel wide.
  const width = Math.max(1, place(piece.ended) - x);
  const words = wordsOn(piece, (some) => some.length * LETTER * TEXT * rem + 8 < width);
  const title = svg("title", {}, `${piece.words}, ${shortTime(piece.ended - piece.began)}`);
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
  if (words) {
    // Above the hatched waiting time, if there is any.
    const high = piece.kind === "reduce" && height > 1.2 * rem ? 0.46 : 0.7;
    group.append(text(words, x + 5, y + height * high, rem, `ddp-theatre-on ddp-theatre-on-${piece.kind}`));
  }
  return group;
}

/** The label of a block: the longest that fits, or nothing. */
function wordsOn({ kind, bucket, words, size }, fits) {
  if (kind === "wait") return "";
  const all = kind === "reduce" ? [`bucket ${bucket}, ${bytes(size)}`, `bucket ${bucket}`, bucket] : [words];
  return all.map(String).find(fits) ?? "";
}

function text(words, x, y, rem, className) {
  return svg("text", { x, y, "font-size": TEXT * rem, class: className }, words);
}

/** A round tick distance in seconds, for about `most` ticks. */
export function tickEvery(length, most = 5) {
  const rough = length / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((every) => every >= rough) ?? rough;
}

function axis(length, place, y, rem, room) {
  const every = tickEvery(length, Math.max(2, Math.min(8, Math.floor(room / (5.5 * rem)))));
  const marks = [];
  for (let moment = 0; moment <= length; moment += every) {
    const x = place(moment);
    // Keep the last label inside the picture.
    const isLast = x > place(length) - 2 * rem;
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
