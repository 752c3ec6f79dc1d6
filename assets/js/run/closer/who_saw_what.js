// Which rank sees which sample at which step of an epoch, and where a single sample is seen in all epochs.

import { columnHeads, el, makeButton, setAttribute, setText, show } from "../../shared/dom.js";
import { UNKNOWN, count, worldSize } from "../../shared/format.js";
import { fetchJson, runAddress } from "../../shared/net.js";
import { term } from "../../shared/terms.js";
import { color } from "../../shared/theme.js";
import { SampleGrid, cellWords, pieceWords, rangeWords, rankWords, seenWords } from "./sample_grid.js";

// The tables of "Who saw what": the picture as numbers, and the epochs of one sample.

/** A row per row of the picture, a column per rank: the number of samples, or their indices. */
function pictureTable({ columns, rows, ranks, counts }, ranksPerReplica) {
  const names = Array.from({ length: ranks.number }, (_, rank) => rankWords(ranks, rank, ranksPerReplica));
  const seenBy = (row, rank) =>
    columns.size === 1 ? numbersOf(row, rank, columns, ranks) : count(sumOf(row, rank, ranks));
  return table(
    [rows.size > 1 ? "Steps" : "Step", ...names],
    counts.map((row, at) => [rangeWords(rows, at), ...names.map((_, rank) => seenBy(row, rank))]),
  );
}

/** A row per epoch: the step at which a sample is seen, and the ranks that see it. */
function wayTable({ sample, epochs, is_all: isAll }, ranksPerReplica) {
  const rows = epochs.map(({ epoch, place, seen }) => [
    count(epoch + 1),
    seen.length > 0 ? count(seen[0].step) : UNKNOWN,
    whoWords(seen, ranksPerReplica),
    count(place),
  ]);
  return el(
    "div",
    {},
    el("h4", {}, `Sample ${count(sample)}`),
    el(
      "div",
      {
        class: "ddp-scroll",
        tabindex: 0,
        role: "group",
        "aria-label": `Where sample ${count(sample)} is seen`,
      },
      table(["Epoch", "Step", "Seen by", "Place in the order"], rows),
    ),
    isAll ? null : el("p", { class: "ddp-hint" }, `The first ${count(epochs.length)} epochs.`),
  );
}

function whoWords(seen, ranksPerReplica) {
  const who = [...new Set(seen.map(({ replica }) => replica))];
  if (who.length === 0) return "nobody";
  if (who.length > 1) return `all ${count(who.length)} ranks`;
  return rankWords({ first: who[0], last: who[0], size: 1 }, 0, ranksPerReplica);
}

function table(titles, rows) {
  const head = columnHeads(titles);
  const body = rows.map(([first, ...others]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, first),
      others.map((words) => el("td", {}, words)),
    ),
  );
  return el("table", { class: "ddp-table" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
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

const WAYS = { sample: "each sample by its number", place: "the order of this epoch" };
// The number of columns after a click on a column of several samples.
const CLOSE_UP = 60;
const POINT_AT = "Point at a cell, or move there with the arrow keys. A click zooms in.";

/** @param {string} runId @param {any} summary */
export function whoSawWhat(runId, summary) {
  return new WhoSawWhat(runId, summary);
}

class WhoSawWhat {
  name = "who-saw-what";
  title = "Who saw what";
  about = "which rank sees which sample, at which step";

  constructor(runId, summary) {
    this.runId = runId;
    this.ranksPerReplica = Math.max(1, Math.round(worldSize(summary.config) / summary.num_replicas));
    this.isOffered = false;
    this.isOpen = false;
    this.asked = { epoch: 0, by: null, first: null, last: null };
    this.data = null;
    this.followed = null;
    this.doneStep = 0;
    this.plan = "";
    this.grid = new SampleGrid({
      onPoint: (row, column) =>
        setText(this.readout, cellWords(this.data, row, column, this.ranksPerReplica)),
      onChoose: (_row, column) => this.lookCloser(column),
    });
    this.element = this.layOut();
  }

  layOut() {
    this.sentence = el("p", { class: "ddp-who-words", role: "status" });
    this.pieces = el("ul", { class: "ddp-who-pieces" });
    this.legend = el("p", { class: "ddp-legend" });
    this.readout = el("p", { class: "ddp-who-readout", role: "status" }, POINT_AT);
    this.table = el("div", {
      class: "ddp-scroll",
      tabindex: 0,
      role: "group",
      "aria-label": "The picture as a table",
    });
    this.tableFold = el(
      "details",
      { class: "ddp-who-table" },
      el("summary", {}, "The picture as a table"),
      this.table,
    );
    this.tableFold.addEventListener("toggle", () => this.tabulate());
    this.problem = el("p", { class: "ddp-empty", role: "status" }, "Computing the picture …");
    this.shown = el("div", { hidden: true }, this.sentence, this.pieces, this.controls(), this.legend);
    this.shown.append(this.layOutPicture(), this.readout, this.followForm(), this.tableFold);
    const caption =
      "Computed from the sampler's own rule and this run's seed, not recorded: a test compares it with what " +
      "the ranks of real runs load.";
    return el("div", {}, el("p", { class: "ddp-caption" }, caption), this.problem, this.shown);
  }

  controls() {
    this.epoch = el("input", {
      type: "number",
      class: "ddp-input ddp-who-number",
      min: 1,
      value: 1,
      "aria-label": "Epoch",
    });
    this.epoch.addEventListener("change", () =>
      this.ask({ epoch: Math.max(1, this.epoch.valueAsNumber || 1) - 1 }),
    );
    this.numEpochs = el("span", {});
    const ways = Object.entries(WAYS).map(([value, words]) => el("option", { value }, words));
    this.by = el("select", {}, ways);
    this.by.addEventListener("change", () => this.ask({ by: this.by.value, first: null, last: null }));
    this.all = makeButton({ class: "ddp-button ddp-button-small", hidden: true }, "Show all");
    this.all.addEventListener("click", () => this.ask({ first: null, last: null }));
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
    this.box = el("div", { class: "ddp-who-picture" }, this.steps, this.grid.element, this.columns);
    return this.box;
  }

  followForm() {
    this.number = el("input", { type: "number", class: "ddp-input ddp-who-number", min: 0, value: 0 });
    this.way = el("div", { class: "ddp-who-way", role: "status" });
    const form = el(
      "form",
      { class: "ddp-who-controls" },
      el("label", {}, "Follow sample", this.number),
      el("button", { type: "submit", class: "ddp-button ddp-button-small" }, "Through all epochs"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.follow(this.number.valueAsNumber);
    });
    this.following = el("div", {}, form, this.way);
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
    const { rows } = this.data.picture ?? {};
    if (!rows || !this.element.isConnected) return false;
    const row = Math.floor((Math.min(this.doneStep, rows.last) - rows.first) / rows.size);
    return row !== this.drawnRow;
  }

  ask(changes) {
    this.asked = { ...this.asked, ...changes };
    this.load();
  }

  async load() {
    const { epoch, by, first, last } = this.asked;
    const query = { epoch, ...(by ? { by } : {}), ...(first === null ? {} : { first, last }) };
    const asked = JSON.stringify(query);
    this.loading = asked;
    try {
      const data = await fetchJson(runAddress(this.runId, "samples", query));
      if (asked === this.loading) this.take(data);
    } catch (error) {
      if (asked !== this.loading) return;
      setText(this.problem, error.message);
      show(this.problem, true);
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
    setText(this.sentence, seenWords(data));
    this.pieces.replaceChildren(
      ...data.pieces.map((piece) => el("li", {}, pieceWords(piece, this.ranksPerReplica))),
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
    this.drawnRow = Math.floor((Math.min(this.doneStep, rows.last) - rows.first) / rows.size);
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
        return el("span", {}, swatch, rankWords(ranks, rank, this.ranksPerReplica) + lane);
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
      const found = await fetchJson(runAddress(this.runId, `samples/${sample}`));
      this.followed = sample;
      this.way.replaceChildren(wayTable(found, this.ranksPerReplica));
    } catch (error) {
      this.way.replaceChildren(el("p", { class: "ddp-hint" }, error.message));
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
