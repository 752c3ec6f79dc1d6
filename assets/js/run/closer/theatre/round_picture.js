// Draws ranks with the chunks of a bucket and the sends between them: along a ring, a tree, or through shared
// memory.

import { svg } from "../../../shared/dom.js";

const CELL = 2.1;
const BOX_PADDING = 0.5;
const NAME_HEIGHT = 1.5;
const TEXT = 0.82;
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

export class RoundPicture {
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
    this.size(width, height, label);
    const cellAt = (rank, chunk) => ({
      x: places[rank].x + BOX_PADDING * rem + chunk * cell,
      y: places[rank].y + (NAME_HEIGHT + BOX_PADDING) * rem,
    });
    const boxes = counts.flatMap((chunks, rank) => [
      box(places[rank], boxWidth, boxHeight, `rank ${rank}`, rem),
      ...chunks.flatMap((count, chunk) => cellOf(cellAt(rank, chunk), cell, { count, num }, rem)),
    ]);
    const moving = sends.flatMap(({ from, to, chunk }) => {
      const [start, end] = [cellAt(from, chunk), cellAt(to, chunk)];
      const bow = num <= 2 ? (from === 0 ? -1 : 1) * 1.6 * rem * Math.sin(Math.PI * progress) : 0;
      const at = {
        x: start.x + (end.x - start.x) * progress,
        y: start.y + (end.y - start.y) * progress + bow + (num <= 2 ? 0 : 0.25 * rem),
      };
      return progress <= 0 || progress >= 1
        ? []
        : [
            svg("line", {
              x1: start.x + cell / 2,
              y1: start.y + cell / 2,
              x2: end.x + cell / 2,
              y2: end.y + cell / 2,
              class: "ddp-theatre-way",
            }),
            ...cellOf(
              at,
              cell,
              { count: counts[from][chunk], num, motion: isAdding ? "adding" : "handing" },
              rem,
            ),
          ];
    });
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
    this.size(width, memoryY + cell + 2.8 * rem, label);
    const x = (rank) => gap + rank * (boxWidth + gap) + BOX_PADDING * rem;
    const y = (NAME_HEIGHT + BOX_PADDING) * rem;
    const slotY = memoryY + 0.5 * rem;
    const memory = [
      svg("rect", {
        x: 1,
        y: memoryY,
        width: width - 2,
        height: cell + 2.4 * rem,
        rx: 8,
        class: "ddp-theatre-box",
      }),
      text(
        "memory that all ranks of this machine share",
        0.7 * rem,
        slotY + cell + 1.3 * rem,
        rem,
        "ddp-theatre-soft",
      ),
    ];
    const boxes = Array.from({ length: num }, (_, rank) => [
      box({ x: x(rank) - BOX_PADDING * rem, y: 0 }, boxWidth, boxHeight, `rank ${rank}`, rem),
      ...cellOf({ x: x(rank), y }, cell, { count: phase > 2 ? num : 1, num }, rem),
      svg("rect", { x: x(rank), y: slotY, width: cell, height: cell, rx: 4, class: "ddp-theatre-slot" }),
      text(notes[rank] ?? "", x(rank) - BOX_PADDING * rem, boxHeight + 1.2 * rem, rem, "ddp-theatre-soft"),
      ...(phase > 0 ? cellOf({ x: x(rank), y: slotY }, cell, { count: 1, num }, rem) : []),
    ]).flat();
    const moving = Array.from({ length: num }, (_, rank) => movingOf(rank)).flat();
    function movingOf(rank) {
      if (phase === 0) {
        return cellOf(
          { x: x(rank), y: y + (slotY - y) * progress },
          cell,
          { count: 1, num, motion: "adding" },
          rem,
        );
      }
      if (phase !== 2) return [];
      // Each rank adds the pieces of all ranks in rank order.
      return Array.from({ length: num }, (_, from) => {
        const at = {
          x: x(from) + (x(rank) - x(from)) * progress + 0.15 * cell,
          y: slotY + (y - slotY) * progress + 0.15 * cell,
        };
        return cellOf(at, cell * 0.7, { count: 1, num, motion: "adding" }, rem);
      }).flat();
    }
    this.element.replaceChildren(...memory, ...boxes, ...moving);
  }

  size(width, height, label) {
    this.element.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.element.setAttribute("width", String(width));
    this.element.setAttribute("height", String(height));
    this.element.setAttribute("aria-label", label);
  }
}

function box({ x, y }, width, height, words, rem) {
  return svg(
    "g",
    {},
    svg("rect", {
      x: x + 0.5,
      y: y + 0.5,
      width: width - 1,
      height: height - 1,
      rx: 8,
      class: "ddp-theatre-box",
    }),
    text(words, x + BOX_PADDING * rem, y + 1.35 * rem, rem, "ddp-theatre-rank"),
  );
}

/** A chunk with the number of ranks it is the sum of; complete sums have another colour. */
function cellOf({ x, y }, size, { count, num, motion = "" }, rem) {
  const isWhole = count === num && num > 1;
  return [
    svg("rect", {
      x: x + 1,
      y: y + 1,
      width: size - 2,
      height: size - 2,
      rx: 4,
      class: `ddp-theatre-cell ${isWhole ? "ddp-theatre-cell-whole" : ""} ${motion && `ddp-theatre-cell-${motion}`}`,
    }),
    svg(
      "text",
      {
        x: x + size / 2,
        y: y + size / 2 + 0.3 * rem,
        "font-size": Math.min(TEXT * rem, size * 0.6),
        "text-anchor": "middle",
        class: `ddp-theatre-count ${isWhole ? "ddp-theatre-count-whole" : ""}`,
      },
      String(count),
    ),
  ];
}

function text(words, x, y, rem, className) {
  return svg("text", { x, y, "font-size": TEXT * rem, class: className }, words);
}
