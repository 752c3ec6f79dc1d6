// The timeline of a recorded step: the blocks of each rank's lanes, and each rank's activity at a moment.

/**
 * A block of a lane: `kind` is a part of the step, "reduce", "wait" or "collective"; times in seconds.
 * @typedef {{ kind: string, words: string, began: number, ended: number, bucket?: number, size?: number }} Piece
 */
/**
 * @typedef {{ rank: number, host: string, compute: Piece[], collectives: Piece[] }} RankLanes
 */

/** Moments closer than this fraction of the step are merged: they look the same. */
export const TOO_NEAR = 1 / 500;

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
 * @param {any} recording
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
      words: PART_WORDS[name] ?? name,
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
      words: `all-reduce of bucket ${each.bucket}`,
      bucket: each.bucket,
      size: buckets[each.bucket]?.bytes,
      began: each.began_s - origin,
      ended: each.ended_s - origin,
    };
    const waits = each.rounds.map(([, written, met]) => ({
      kind: "wait",
      words: `waits for the other ranks in bucket ${each.bucket}`,
      bucket: each.bucket,
      began: written - origin,
      ended: met - origin,
    }));
    return [whole, ...waits];
  });
  const others = step.collectives.map((each) => ({
    kind: "collective",
    words: shortName(each.name),
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
  const apart = length * TOO_NEAR;
  /** @type {number[]} */
  const found = [];
  for (const moment of [0, ...all].toSorted((a, b) => a - b)) {
    const isNew = moment - (found.at(-1) ?? -1) > apart;
    if (isNew && moment >= 0 && moment < length - apart) found.push(moment);
  }
  found.push(length);
  return found;
}

/**
 * Describes a rank's activity at a moment: its computation and any concurrent communication.
 * @param {RankLanes} lanes
 * @param {number} moment
 */
export function doingAt({ compute, collectives }, moment) {
  const isNow = ({ began, ended }) => began <= moment && moment < ended;
  const now = collectives.filter(isNow);
  const waiting = now.find(({ kind }) => kind === "wait");
  const reducing = now.filter(({ kind }) => kind === "reduce" || kind === "collective");
  const own = compute.find(isNow);
  if (waiting) return waiting.words;
  const beside = reducing.map(({ words }) => words).join(", ");
  if (own && beside) return `${own.words}, and at the same time ${beside}`;
  return own?.words ?? (beside || "between two steps");
}
