// The picture and the texts of "Who saw what": a grid of counts on a canvas, with a lane per rank.

import { el } from "../../shared/dom.js";
import { count } from "../../shared/format.js";
import { color, isDark, onThemeChange } from "../../shared/theme.js";

// A grid of counts on a canvas: columns are samples, rows are steps, and each row has a lane per rank.

const TALLEST_PX = 400;
const TALLEST_LANE_PX = 18;
const GAP_FROM_PX = 5;
const FAINTEST = 0.35;
const PALE = 0.3;

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

export class SampleGrid {
  /**
   * @param {object} told the callbacks
   * @param {(row: number, column: number) => void} told.onPoint the pointer or an arrow key selects a cell
   * @param {(row: number, column: number) => void} told.onChoose a cell is clicked, or Enter is pressed
   */
  constructor({ onPoint, onChoose }) {
    this.onPoint = onPoint;
    this.picture = null;
    /** @type {[number, number] | null} */
    this.cell = null;
    this.doneStep = 0;
    this.markedColumn = null;
    this.canvas = el("canvas", {
      class: "ddp-who-canvas",
      tabindex: 0,
      role: "application",
      "aria-label":
        "Samples from left to right, steps from top to bottom, in each row a lane for each rank. " +
        "Arrow keys move, Enter zooms in.",
    });
    this.canvas.addEventListener("pointermove", (event) => this.point(this.cellAt(event)));
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) onChoose(...cell);
    });
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.cell) onChoose(...this.cell);
      if (event.key in MOVES) this.move(event, MOVES[event.key]);
    });
    this.element = this.canvas;
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.canvas);
    this.endTheme = onThemeChange(() => this.draw());
  }

  /** Shows a picture. Steps after `doneStep` are pale; `markedColumn` is outlined unless null. */
  update(picture, { doneStep, markedColumn }) {
    if (picture !== this.picture) this.cell = null;
    this.picture = picture;
    this.doneStep = doneStep;
    this.markedColumn = markedColumn;
    this.draw();
  }

  /** @param {[number, number] | null} cell */
  point(cell) {
    if (!cell || String(cell) === String(this.cell)) return;
    this.cell = cell;
    this.onPoint(...cell);
    this.draw();
  }

  move(event, [down, right]) {
    if (!this.picture) return;
    event.preventDefault();
    const { rows, columns } = this.picture;
    const [row, column] = this.cell ?? [-down, -right];
    const within = (value, number) => Math.min(number - 1, Math.max(0, value));
    this.point([within(row + down, rows.number), within(column + right, columns.number)]);
  }

  /** @returns {[number, number] | null} row and column */
  cellAt(event) {
    if (!this.picture) return null;
    const box = this.canvas.getBoundingClientRect();
    const { rows, columns } = this.picture;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows.number);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns.number);
    const isInside = row >= 0 && row < rows.number && column >= 0 && column < columns.number;
    return isInside ? [row, column] : null;
  }

  draw() {
    const { picture, canvas } = this;
    if (!picture || canvas.clientWidth === 0) return;
    const { rows, columns, ranks } = picture;
    const lane = Math.min(
      TALLEST_LANE_PX,
      Math.max(1, Math.floor(TALLEST_PX / (rows.number * ranks.number))),
    );
    const gap = lane * ranks.number >= GAP_FROM_PX ? 1 : 0;
    const height = rows.number * (lane * ranks.number + gap);
    canvas.style.height = `${height}px`;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    if (!context) return;
    context.scale(scale, scale);
    this.paint(context, {
      lane,
      rowHeight: lane * ranks.number + gap,
      width: canvas.clientWidth / columns.number,
    });
    this.outline(context, lane * ranks.number + gap, canvas.clientWidth / columns.number, height);
  }

  paint(context, { lane, rowHeight, width }) {
    const { rows, ranks, counts } = this.picture;
    const most = Math.max(1, ...counts.map((row) => Math.max(...row)));
    const gap = width >= GAP_FROM_PX ? 1 : 0;
    const colors = Array.from({ length: ranks.number }, (_, rank) => color(rank));
    counts.forEach((row, at) => {
      const isDone = rows.first + at * rows.size <= this.doneStep;
      row.forEach((number, index) => {
        if (number === 0) return;
        const rank = index % ranks.number;
        context.globalAlpha = (FAINTEST + (1 - FAINTEST) * (number / most)) * (isDone ? 1 : PALE);
        context.fillStyle = colors[rank];
        const left = ((index - rank) / ranks.number) * width;
        context.fillRect(left, at * rowHeight + rank * lane, Math.max(1, width - gap), lane);
      });
    });
    context.globalAlpha = 1;
  }

  /** Outlines the marked column and the selected cell. */
  outline(context, rowHeight, width, height) {
    context.strokeStyle = isDark() ? "#ffffff" : "#1d232b";
    context.lineWidth = 1.5;
    if (this.markedColumn !== null) {
      context.strokeRect(this.markedColumn * width - 1, 0.75, Math.max(3, width + 1), height - 1.5);
    }
    if (this.cell) {
      const [row, column] = this.cell;
      context.strokeRect(
        column * width - 0.75,
        row * rowHeight - 0.75,
        Math.max(3, width + 0.75),
        rowHeight + 0.5,
      );
    }
  }

  close() {
    this.sizes.disconnect();
    this.endTheme();
  }
}

// The texts of "Who saw what".

/** "5", or "5–9" for a range of numbers; `shift` is added to both ends. */
export function rangeWords({ first, last, size }, index, shift = 0) {
  const low = first + index * size;
  const high = Math.min(last, low + size - 1);
  return low === high ? count(low + shift) : `${count(low + shift)}–${count(high + shift)}`;
}

/** "rank 0" or "ranks 0–7"; "copy" instead of "rank" if several ranks share one copy of the model. */
export function rankWords(ranks, index, ranksPerReplica) {
  const word = ranksPerReplica > 1 ? "copy" : "rank";
  const several = ranksPerReplica > 1 ? "copies" : "ranks";
  const numbers = rangeWords(ranks, index);
  return `${numbers.includes("–") ? several : word} ${numbers}`;
}

/** How often each sample is seen in the epoch, which shows whether the ranks share the work. */
export function seenWords({ times_seen: { fewest, most }, mistake, epoch, is_shuffled_anew: isAnew }) {
  const order =
    epoch > 0 && !isAnew
      ? " The order is that of the first epoch, because set_epoch was not called: every rank sees the same samples again."
      : "";
  if (fewest === 1 && most === 1) {
    return `Every sample is seen exactly once in this epoch, by one rank.${order}`;
  }
  if (mistake === "no_sampler" && fewest === most) {
    return `Every sample is seen ${count(most)} times in this epoch, once by each rank and in the same step: without a sampler all ranks do the same work.${order}`;
  }
  return fewest === most
    ? `Every sample is seen ${count(most)} times in this epoch.${order}`
    : `A sample is seen ${count(fewest)} to ${count(most)} times in this epoch.${order}`;
}

/** How a part of the epoch is distributed, as an equation. */
export function pieceWords(piece, ranksPerReplica) {
  const { first_step: first, num_steps: steps, num_replicas: replicas, num_dealt: dealt } = piece;
  const {
    batch_size: batch,
    num_accumulated: accumulated,
    last_shares: [fewest, most],
  } = piece;
  const who = ranksPerReplica > 1 ? plural(replicas, "copy", "copies") : plural(replicas, "rank", "ranks");
  const factors = [
    ...(dealt === replicas ? [who] : []),
    ...(accumulated > 1 ? [`${count(accumulated)} micro-batches`] : []),
    `${count(batch)} samples`,
  ];
  const all = dealt === replicas ? "" : ` for each of ${who}, the same ones`;
  const last = piece.end_place - piece.first_place - (steps - 1) * piece.global_batch;
  const shares = fewest === most ? count(most) : `${count(fewest)} or ${count(most)}`;
  const rest =
    last === piece.global_batch ? "" : `; the last step has the remaining ${count(last)}, ${shares} a rank`;
  const span = steps === 1 ? `Step ${count(first)}` : `Steps ${count(first)}–${count(first + steps - 1)}`;
  return `${span}: ${factors.join(" × ")} = ${count(piece.global_batch)} samples a step${all}${rest}.`;
}

/** The content of a cell: how many of its samples each rank saw at its steps. */
export function cellWords({ by, picture }, row, column, ranksPerReplica) {
  const { columns, rows, ranks, counts } = picture;
  const what = by === "place" ? "Place" : "Sample";
  const columnRange = rangeWords(columns, column);
  const rowRange = rangeWords(rows, row);
  const seen = Array.from({ length: ranks.number }, (_, rank) => counts[row][column * ranks.number + rank]);
  const who = seen
    .map((number, rank) =>
      number > 0 ? `${rankWords(ranks, rank, ranksPerReplica)} saw ${count(number)}` : null,
    )
    .filter((words) => words !== null);
  const isOne = columns.size === 1 && rows.size === 1;
  const found = isOne
    ? seen.flatMap((number, rank) => (number > 0 ? [rankWords(ranks, rank, ranksPerReplica)] : []))
    : who;
  const words = found.length === 0 ? "nobody" : found.join(", ");
  const steps = `${rowRange.includes("–") ? "steps" : "step"} ${rowRange}`;
  return `${what}${columnRange.includes("–") ? "s" : ""} ${columnRange}, ${steps}: ${words}.`;
}

function plural(number, one, several) {
  return `${count(number)} ${number === 1 ? one : several}`;
}
