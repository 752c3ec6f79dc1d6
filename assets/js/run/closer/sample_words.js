// The texts of "Who saw what".

import { count } from "../../shared/format.js";

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
