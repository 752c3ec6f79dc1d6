// The tables of "Who saw what": the picture as numbers, and the epochs of one sample.

import { el } from "../../shared/dom.js";
import { count, UNKNOWN } from "../../shared/format.js";
import { rangeWords, rankWords } from "./sample_words.js";

/** A row per row of the picture, a column per rank: the number of samples, or their indices. */
export function pictureTable({ columns, rows, ranks, counts }, ranksPerReplica) {
  const names = Array.from({ length: ranks.number }, (_, rank) => rankWords(ranks, rank, ranksPerReplica));
  const seenBy = (row, rank) =>
    columns.size === 1 ? numbersOf(row, rank, columns, ranks) : count(sumOf(row, rank, ranks));
  return table(
    [rows.size > 1 ? "Steps" : "Step", ...names],
    counts.map((row, at) => [rangeWords(rows, at), ...names.map((_, rank) => seenBy(row, rank))]),
  );
}

/** A row per epoch: the step at which a sample is seen, and the ranks that see it. */
export function wayTable({ sample, epochs, is_all: isAll }, ranksPerReplica) {
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
  const head = titles.map((title) => el("th", { scope: "col" }, title));
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
