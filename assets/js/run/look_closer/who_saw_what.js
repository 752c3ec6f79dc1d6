// Which rank sees which sample at which step of an epoch, and where a single sample is seen in all epochs.

import { el, setAttribute, setText, show, showText } from "../../shared/dom.js";
import { capital, count, UNKNOWN, worldSize } from "../../shared/format.js";
import { color, isDark, onThemeChange } from "../../shared/theme.js";
import { fetchJson, runAddress } from "../../shared/net.js";
import { term } from "../../shared/terms.js";
import {
  collapsed,
  makeTable,
  optionsOf,
  paragraph,
  scrollBox,
  tableRow,
  textButton,
} from "../../shared/widgets.js";

// A grid of counts on a canvas: columns are samples, rows are steps, and each row has a lane per rank.

const TALLEST_PX = 400;
const TALLEST_LANE_PX = 18;
const GAP_FROM_PX = 5;
const FAINTEST = 0.35;
const PALE = 0.3;

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

class SampleGrid {
  /**
   * @param {object} callbacks the callbacks
   * @param {(row: number, column: number) => void} callbacks.onPoint the pointer or an arrow key selects a cell
   * @param {(row: number, column: number) => void} callbacks.onChoose a cell is clicked, or Enter is pressed
   */
  constructor({ onPoint, onChoose }) {
    this.onPoint = onPoint;
    this.picture = null;
    /** @type {[number, number] | null} */
    this.cell = null;
    this.doneStep = 0;
    this.markedColumn = null;
    this.element = el("canvas", {
      class: "ddp-who-canvas",
      tabindex: 0,
      role: "application",
      "aria-label":
        "Samples from left to right, steps from top to bottom, in each row a lane for each rank. " +
        "Arrow keys move, Enter zooms in.",
      onpointermove: (event) => this.point(this.cellAt(event)),
      onclick: (event) => {
        const cell = this.cellAt(event);
        if (cell) onChoose(...cell);
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && this.cell) onChoose(...this.cell);
        if (event.key in MOVES) this.move(event, MOVES[event.key]);
      },
    });
    this.canvas = this.element;
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
    const [rowHeight, width] = [lane * ranks.number + gap, canvas.clientWidth / columns.number];
    this.paint(context, lane, rowHeight, width);
    this.outline(context, rowHeight, width, height);
  }

  paint(context, lane, rowHeight, width) {
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
      const [top, left] = [this.cell[0] * rowHeight - 0.75, this.cell[1] * width - 0.75];
      context.strokeRect(left, top, Math.max(3, width + 0.75), rowHeight + 0.5);
    }
  }

  close() {
    this.sizes.disconnect();
    this.endTheme();
  }
}

// The texts of "Who saw what".

/** "5", or "5–9" for a range of numbers; `shift` is added to both ends. */
function rangeText({ first, last, size }, index, shift = 0) {
  const low = first + index * size;
  const high = Math.min(last, low + size - 1);
  return low === high ? count(low + shift) : `${count(low + shift)}–${count(high + shift)}`;
}

/** "rank 0" or "ranks 0–7"; "copy" instead of "rank" if several ranks share one copy of the model. */
export function rankText(ranks, index, ranksPerReplica) {
  const numbers = rangeText(ranks, index);
  return `${nounOf(ranksPerReplica, numbers.includes("–"))} ${numbers}`;
}

function nounOf(ranksPerReplica, areSeveral) {
  if (ranksPerReplica > 1) return areSeveral ? "copies" : "copy";
  return areSeveral ? "ranks" : "rank";
}

const SAME_ORDER =
  " The order is that of the first epoch, because set_epoch was not called: every rank sees the same samples again.";

/** How often each sample is seen in the epoch, which shows whether the ranks share the work. */
export function seenText({ times_seen: { fewest, most }, mistake, epoch, is_shuffled_anew: isAnew }) {
  const order = epoch > 0 && !isAnew ? SAME_ORDER : "";
  const times = fewest === most ? count(most) : `${count(fewest)} to ${count(most)}`;
  if (fewest !== most) return `A sample is seen ${times} times in this epoch.${order}`;
  if (most === 1) return `Every sample is seen exactly once in this epoch, by one rank.${order}`;
  const why =
    mistake === "no_sampler"
      ? ", once by each rank and in the same step: without a sampler all ranks do the same work"
      : "";
  return `Every sample is seen ${times} times in this epoch${why}.${order}`;
}

/** How a part of the epoch is distributed, as an equation. */
export function pieceText(piece, ranksPerReplica) {
  const { first_step: first, num_steps: steps, num_replicas: replicas, num_dealt: dealt } = piece;
  const { batch_size: batch, num_accumulated: accumulated, last_shares: shared } = piece;
  const [fewest, most] = shared;
  const copies = `${count(replicas)} ${nounOf(ranksPerReplica, replicas > 1)}`;
  const factors = [
    ...(dealt === replicas ? [copies] : []),
    ...(accumulated > 1 ? [`${count(accumulated)} micro-batches`] : []),
    `${count(batch)} samples`,
  ];
  const all = dealt === replicas ? "" : ` for each of ${copies}, the same ones`;
  const last = piece.end_place - piece.first_place - (steps - 1) * piece.global_batch;
  const shares = fewest === most ? count(most) : `${count(fewest)} or ${count(most)}`;
  const remainder =
    last === piece.global_batch ? "" : `; the last step has the remaining ${count(last)}, ${shares} a rank`;
  const span = steps === 1 ? `Step ${count(first)}` : `Steps ${count(first)}–${count(first + steps - 1)}`;
  return `${span}: ${factors.join(" × ")} = ${count(piece.global_batch)} samples a step${all}${remainder}.`;
}

/** The content of a cell: how many of its samples each rank saw at its steps. */
export function cellText({ by, picture }, row, column, ranksPerReplica) {
  const { columns, rows, ranks, counts } = picture;
  const what = by === "place" ? "Place" : "Sample";
  const columnRange = rangeText(columns, column);
  const rowRange = rangeText(rows, row);
  const isOne = columns.size === 1 && rows.size === 1;
  const parts = [];
  for (let rank = 0; rank < ranks.number; rank += 1) {
    const number = counts[row][column * ranks.number + rank];
    const rankName = rankText(ranks, rank, ranksPerReplica);
    if (number > 0) parts.push(isOne ? rankName : `${rankName} saw ${count(number)}`);
  }
  const text = parts.length === 0 ? "nobody" : parts.join(", ");
  const steps = `${rowRange.includes("–") ? "steps" : "step"} ${rowRange}`;
  return `${what}${columnRange.includes("–") ? "s" : ""} ${columnRange}, ${steps}: ${text}.`;
}

// The tables of "Who saw what": the picture as numbers, and the epochs of one sample.

/** A row per row of the picture, a column per rank: the number of samples, or their indices. */
function pictureTable({ columns, rows, ranks, counts }, ranksPerReplica) {
  const names = Array.from({ length: ranks.number }, (_, rank) => rankText(ranks, rank, ranksPerReplica));
  const seenBy = (row, rank) =>
    columns.size === 1 ? numbersOf(row, rank, columns, ranks) : count(sumOf(row, rank, ranks));
  return table(
    [rows.size > 1 ? "Steps" : "Step", ...names],
    counts.map((row, at) => [rangeText(rows, at), ...names.map((_, rank) => seenBy(row, rank))]),
  );
}

/** A row per epoch: the step at which a sample is seen, and the ranks that see it. */
function wayTable({ sample, epochs, is_all: isAll }, ranksPerReplica) {
  const rows = epochs.map(({ epoch, place, seen }) => [
    count(epoch + 1),
    count(seen[0]?.step),
    whoText(seen, ranksPerReplica),
    count(place),
  ]);
  const name = `sample ${count(sample)}`;
  const way = table(["Epoch", "Step", "Seen by", "Place in the order"], rows);
  const more = isAll ? null : paragraph("hint", `The first ${count(epochs.length)} epochs.`);
  return el("div", {}, el("h4", {}, capital(name)), scrollBox(`Where ${name} is seen`, way), more);
}

function whoText(seen, ranksPerReplica) {
  const who = [...new Set(seen.map(({ replica }) => replica))];
  if (who.length === 0) return "nobody";
  if (who.length > 1) return `all ${count(who.length)} ranks`;
  return rankText({ first: who[0], last: who[0], size: 1 }, 0, ranksPerReplica);
}

function table(titles, rows) {
  const body = rows.map(([first, ...others]) => tableRow(first, others));
  return makeTable("ddp-table", titles, body);
}

function sumOf(row, rank, ranks) {
  return row.reduce((sum, number, index) => (index % ranks.number === rank ? sum + number : sum), 0);
}

function numbersOf(row, rank, columns, ranks) {
  const numbers = row.flatMap((number, index) =>
    number > 0 && index % ranks.number === rank ? [count(columns.first + (index - rank) / ranks.number)] : [],
  );
  return numbers.length > 0 ? numbers.join(" · ") : UNKNOWN;
}

const COMPUTED =
  "Computed from the sampler's own rule and this run's seed, not recorded: a test compares it with what " +
  "the ranks of real runs load.";
const WAYS = [
  ["sample", "each sample by its number"],
  ["place", "the order of this epoch"],
];
// The number of columns after a click on a column of several samples.
const CLOSE_UP = 60;
const POINT_AT = "Point at a cell, or move there with the arrow keys. A click zooms in.";

export class WhoSawWhat {
  name = "who-saw-what";
  title = "Who saw what";
  about = "which rank sees which sample, at which step";

  constructor(runId, summary) {
    this.runId = runId;
    this.ranksPerReplica = Math.max(1, Math.round(worldSize(summary.config) / summary.num_replicas));
    this.isOffered = false;
    this.isOpen = false;
    this.query = { epoch: 0, by: null, first: null, last: null };
    this.data = null;
    this.followed = null;
    this.doneStep = 0;
    this.plan = "";
    this.grid = new SampleGrid({
      onPoint: (row, column) => setText(this.readout, cellText(this.data, row, column, this.ranksPerReplica)),
      onChoose: (_row, column) => this.lookCloser(column),
    });
    this.element = this.layOut();
  }

  layOut() {
    this.sentence = el("p", { class: "ddp-who-words", role: "status" });
    this.pieces = el("ul", { class: "ddp-who-pieces" });
    this.legend = el("p", { class: "ddp-legend" });
    this.readout = el("p", { class: "ddp-who-readout", role: "status" }, POINT_AT);
    this.table = scrollBox("The picture as a table");
    this.tableFold = collapsed("ddp-who-table", "The picture as a table", this.table);
    this.tableFold.addEventListener("toggle", () => this.tabulate());
    this.problem = el("p", { class: "ddp-empty", role: "status" }, "Computing the picture …");
    this.shown = el("div", { hidden: true }, this.sentence, this.pieces, this.controls(), this.legend);
    this.shown.append(this.layOutPicture(), this.readout, this.followForm(), this.tableFold);
    return el("div", {}, paragraph("caption", COMPUTED), this.problem, this.shown);
  }

  controls() {
    const onEpoch = () => this.ask({ epoch: Math.max(1, this.epoch.valueAsNumber || 1) - 1 });
    const ofEpoch = { min: 1, value: 1, "aria-label": "Epoch", onchange: onEpoch };
    this.epoch = el("input", { type: "number", class: "ddp-input ddp-who-number", ...ofEpoch });
    this.numEpochs = el("span", {});
    const onBy = () => this.ask({ by: this.by.value, first: null, last: null });
    this.by = el("select", { onchange: onBy }, optionsOf(WAYS));
    this.all = textButton("Show all", () => this.ask({ first: null, last: null }), "small", { hidden: true });
    return el(
      "div",
      { class: "ddp-who-controls" },
      el("span", {}, term("epoch", "Epoch"), this.epoch, this.numEpochs),
      el("label", {}, "Columns are", this.by),
      this.all,
    );
  }

  layOutPicture() {
    const marks = (number) => Array.from({ length: number }, () => el("span"));
    this.steps = el("div", { class: "ddp-who-steps", "aria-hidden": "true" }, marks(2));
    this.columns = el("div", { class: "ddp-who-columns", "aria-hidden": "true" }, marks(3));
    this.box = el("div", { class: "ddp-who-picture" }, this.steps, this.grid, this.columns);
    return this.box;
  }

  followForm() {
    this.number = el("input", { type: "number", class: "ddp-input ddp-who-number", min: 0, value: 0 });
    this.way = el("div", { class: "ddp-who-way", role: "status" });
    const onsubmit = (event) => {
      event.preventDefault();
      this.follow(this.number.valueAsNumber);
    };
    const label = el("label", {}, "Follow sample", this.number);
    const button = textButton("Through all epochs", null, "small", { type: "submit" });
    this.following = el(
      "div",
      {},
      el("form", { class: "ddp-who-controls", onsubmit }, label, button),
      this.way,
    );
    return this.following;
  }

  open() {
    this.isOpen = true;
    if (this.isOffered && this.data === null) this.load();
  }

  update({ head }) {
    this.isOffered = head.num_train !== null && head.num_train !== undefined;
    // A resume on another number of ranks distributes the remaining samples differently.
    const plan = `${head.num_train} ${head.num_ranks} ${head.global_batch} ${head.num_epochs}`;
    const isOther = plan !== this.plan;
    this.plan = plan;
    if (isOther && this.isOpen && this.isOffered) this.load();
    else if (head.step !== this.doneStep && this.data) {
      this.doneStep = head.step;
      if (this.hasChangedRows()) this.drawGrid();
    }
    this.doneStep = head.step;
  }

  /** True if the latest step is in another row of the picture than at the last drawing. */
  hasChangedRows() {
    return this.data.picture && this.element.isConnected && this.doneRow() !== this.drawnRow;
  }

  /** The row of the latest step. */
  doneRow() {
    const { first, last, size } = this.data.picture.rows;
    return Math.floor((Math.min(this.doneStep, last) - first) / size);
  }

  ask(changes) {
    this.query = { ...this.query, ...changes };
    this.load();
  }

  async load() {
    const { epoch, by, first, last } = this.query;
    const query = { epoch, ...(by ? { by } : {}), ...(first === null ? {} : { first, last }) };
    const queryText = JSON.stringify(query);
    this.loading = queryText;
    try {
      const data = await fetchJson(runAddress(this.runId, "samples", query));
      if (queryText === this.loading) this.take(data);
    } catch (error) {
      if (queryText !== this.loading) return;
      showText(this.problem, error.message);
      show(this.shown, this.data !== null);
    }
  }

  take(data) {
    this.data = data;
    show(this.problem, false);
    show(this.shown, true);
    this.epoch.value = String(data.epoch + 1);
    setAttribute(this.epoch, "max", data.num_epochs);
    setText(this.numEpochs, `of ${count(data.num_epochs)}`);
    setText(this.sentence, seenText(data));
    this.pieces.replaceChildren(
      ...data.pieces.map((piece) => el("li", {}, pieceText(piece, this.ranksPerReplica))),
    );
    for (const option of this.by.options) option.disabled = !data.ways.includes(option.value);
    if (data.by) this.by.value = data.by;
    show(this.following, data.ways.includes("sample"));
    setAttribute(this.number, "max", data.num_samples - 1);
    const isDrawn = data.picture !== null && data.picture.rows.number > 0;
    for (const part of [this.box, this.readout, this.legend, this.tableFold]) show(part, isDrawn);
    if (!isDrawn) return;
    const { columns } = data.picture;
    show(this.all, columns.first > 0 || columns.last < data.num_samples - 1);
    setText(this.readout, POINT_AT);
    this.label();
    this.drawGrid();
    this.tabulate();
  }

  drawGrid() {
    const { picture, by } = this.data;
    const { rows, columns } = picture;
    this.drawnRow = this.doneRow();
    const isInside =
      this.followed !== null && this.followed >= columns.first && this.followed <= columns.last;
    const markedColumn =
      by === "sample" && isInside ? Math.floor((this.followed - columns.first) / columns.size) : null;
    this.grid.update(picture, { doneStep: this.doneStep, markedColumn });
    show(this.paler, this.doneStep < rows.last);
  }

  label() {
    const { by, picture } = this.data;
    const { columns, rows, ranks } = picture;
    const word = by === "place" ? "place" : "sample";
    const [low, middle, high] = this.columns.children;
    setText(low, `${word} ${count(columns.first)}`);
    setText(middle, columns.size > 1 ? `a column is ${count(columns.size)} ${word}s` : "");
    setText(high, `${word} ${count(columns.last)}`);
    const [top, bottom] = this.steps.children;
    setText(top, `step ${count(rows.first)}`);
    const last = `${rows.size > 1 ? `a row is ${count(rows.size)} steps; ` : ""}step ${count(rows.last)}`;
    setText(bottom, rows.first === rows.last ? "" : last);
    this.paler = el("span", {}, el("i", { class: "ddp-part ddp-who-paler" }), "paler: not trained on yet");
    this.legend.replaceChildren(
      ...Array.from({ length: ranks.number }, (_, rank) => {
        const swatch = el("i", { class: "ddp-part", "aria-hidden": "true" });
        swatch.style.background = color(rank);
        const isEdge = ranks.number > 1 && (rank === 0 || rank === ranks.number - 1);
        const lane = isEdge ? ` (${rank === 0 ? "upper" : "lower"} lane)` : "";
        return el("span", {}, swatch, rankText(ranks, rank, this.ranksPerReplica) + lane);
      }),
      this.paler,
    );
  }

  /** Zooms in on a column of several samples, or follows the sample of a single one. */
  lookCloser(column) {
    const { picture, by, num_samples: all } = this.data;
    const { columns } = picture;
    const number = columns.first + column * columns.size;
    if (columns.size === 1) {
      if (by === "sample") this.follow(number);
      return;
    }
    const size = Math.max(CLOSE_UP, columns.size);
    const first = Math.max(0, Math.min(all - size, number - Math.floor((size - columns.size) / 2)));
    this.ask({ first, last: Math.min(all, first + size) - 1 });
  }

  async follow(sample) {
    if (!Number.isInteger(sample)) return;
    this.number.value = String(sample);
    try {
      const locations = await fetchJson(runAddress(this.runId, `samples/${sample}`));
      this.followed = sample;
      this.way.replaceChildren(wayTable(locations, this.ranksPerReplica));
    } catch (error) {
      this.way.replaceChildren(paragraph("hint", error.message));
    }
    if (this.data?.picture) this.drawGrid();
  }

  tabulate() {
    if (!this.tableFold.open || !this.data?.picture) return;
    this.table.replaceChildren(pictureTable(this.data.picture, this.ranksPerReplica));
  }

  close() {
    this.grid.close();
  }
}
