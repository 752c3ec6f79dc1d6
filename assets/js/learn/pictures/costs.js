// From N times as fast to what came: what each part of a step costs with N ranks, beyond its N-th with one.
// The speed is that of the median step: in a run of seconds a single step that was disturbed would count for hundreds.

import { speedUp } from "../../runs/compare/scaling.js";

/** As the server sends the seconds of a slice of a rank's history. */
const FIELDS = ["step", "data", "forward", "backward", "optimizer", "wait", "all_reduce", "hidden"];

/** The costs, in the order of the picture. */
export const PARTS = ["data", "computing", "communicating", "waiting"];

/**
 * The seconds of each part of a step: the mean over those samples of all ranks whose step is neither among the
 * shortest nor among the longest quarter (of two ranks only one waits: a median would often be of the other); null where nothing was sampled.
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
 * One rank alone waits for nobody, and averages with nobody: all of its passes is computing.
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
 * How many times as fast N ranks could be, how many times they were, and what the difference went into. All are
 * shares of the ranks' time: a cost of 0.3 is three tenths of what one rank does in a step.
 * @param {{ head: any, history: any[] }} one the run with fewer ranks
 * @param {{ head: any, history: any[] }} many
 * @returns {{ best: number, came: number, costs: Record<string, number>, unexplained: number } | null}
 */
export function waterfall(one, many) {
  const [before, after] = [partsOf(one.history), partsOf(many.history)];
  const came = speedUp(many.head, one.head);
  if (!before || !after || came === null) return null;
  const best = many.head.num_ranks / one.head.num_ranks;
  // What a part would take if nothing but the number of ranks had an effect.
  const share = many.head.global_batch / one.head.global_batch / best;
  const step_s = many.head.pace.step_time_s;
  const costs = Object.fromEntries(
    PARTS.map((part) => [part, (best * (after[part] - share * before[part])) / step_s]),
  );
  const explained = Object.values(costs).reduce((sum, cost) => sum + cost, 0);
  return { best, came, costs, unexplained: best - came - explained };
}
