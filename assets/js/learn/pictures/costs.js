// The waterfall from the ideal speed-up N to the measured one: what each part of a step costs with N ranks
// beyond its N-th with one rank. The speed is that of the median step, because in a run of seconds a single
// disturbed step would outweigh hundreds.

import { speedUp } from "../../runs/compare/figure.js";

/** The order of the values in a slice of a rank's history, as the server sends them. */
const FIELDS = ["step", "data", "forward", "backward", "optimizer", "wait", "all_reduce", "hidden"];

/** The parts of a step in the order of the picture. */
export const PARTS = ["data", "computing", "communicating", "waiting"];

/**
 * The mean seconds of each part of a step, over the samples of all ranks whose step time lies in the middle
 * half. (A median would not work: of two ranks only one waits.) Null without samples.
 * @param {{ slices: (number | null)[][] }[]} history
 * @returns {Record<string, number> | null}
 */
export function partsOf(history) {
  const slices = history.flatMap((rank) => rank.slices).map(named);
  const measured = slices.filter(({ forward, backward }) => forward !== null && backward !== null);
  if (measured.length === 0) return null;
  const sorted = measured.toSorted((one, other) => one.step - other.step);
  const usual = sorted.slice(Math.floor(sorted.length / 4), Math.ceil((3 * sorted.length) / 4));
  const divided = usual.map((slice) => divide(slice, history.length > 1));
  return Object.fromEntries(
    PARTS.map((part) => [part, divided.reduce((sum, each) => sum + each[part], 0) / divided.length]),
  );
}

/** @returns {Record<string, any>} */
function named(slice) {
  return Object.fromEntries(FIELDS.map((field, at) => [field, slice[at] ?? null]));
}

/**
 * Splits a slice. A single rank neither waits nor communicates: its forward and backward pass is all
 * computing.
 * @param {Record<string, any>} slice
 * @param {boolean} hasOthers
 */
function divide(slice, hasOthers) {
  const { data, forward, backward, optimizer, wait, all_reduce: allReduce, hidden } = slice;
  const waiting = hasOthers ? (wait ?? 0) : 0;
  const seen = hasOthers && allReduce !== null ? Math.max(waiting, allReduce - (hidden ?? 0)) : waiting;
  return {
    data: data ?? 0,
    computing: forward + Math.max(0, backward - seen) + (optimizer ?? 0),
    communicating: seen - waiting,
    waiting,
  };
}

/**
 * The ideal speed-up with N ranks, the measured one, and the costs that explain the difference. Costs are
 * fractions of one rank's step time: 0.3 is three tenths of a rank's work per step.
 * @param {{ head: any, history: any[] }} one the run with fewer ranks
 * @param {{ head: any, history: any[] }} many
 * @returns {{ best: number, came: number, costs: Record<string, number>, unexplained: number } | null}
 */
export function waterfall(one, many) {
  const [before, after] = [partsOf(one.history), partsOf(many.history)];
  const came = speedUp(many.head, one.head);
  if (!before || !after || came === null) return null;
  const best = many.head.num_ranks / one.head.num_ranks;
  // The factor by which a part would change if only the number of ranks and the batch had an effect.
  const share = many.head.global_batch / one.head.global_batch / best;
  const step_s = many.head.pace.step_time_s;
  const costs = Object.fromEntries(
    PARTS.map((part) => [part, (best * (after[part] - share * before[part])) / step_s]),
  );
  const explained = Object.values(costs).reduce((sum, cost) => sum + cost, 0);
  return { best, came, costs, unexplained: best - came - explained };
}
