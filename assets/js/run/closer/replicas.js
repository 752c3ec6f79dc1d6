// States whether the ranks' replicas are identical.

import { el, icon, setAttribute, setText, show } from "../../shared/dom.js";
import { count, LIVE_STATES, worldSize } from "../../shared/format.js";

/**
 * A short text for `fingerprints` of the stream; null if nothing was compared yet.
 * @param {any} found
 */
export function replicaWords(found) {
  if (!found) return null;
  if (found.is_identical) return `replicas identical at step ${count(found.step)}`;
  return `replicas differ since step ${count(found.differ_since)}`;
}

/**
 * The same as a sentence.
 * @param {any} found
 */
export function replicaSentence(found) {
  const { step, num_ranks: ranks, differ_since: since, identical_until: until } = found;
  if (found.is_identical) {
    const all = ranks === 2 ? "Both ranks have" : `All ${count(ranks)} ranks have`;
    return `${all} the same weights, bit for bit, after step ${count(step)}.`;
  }
  const before = until === null ? "" : `; they were still identical after step ${count(until)}`;
  return `The ranks have different weights: first detected after step ${count(since)}${before}.`;
}

/**
 * Maps each hash to a group: 0 for hashes equal to rank 0's, then 1, 2 … per distinct hash.
 * @param {string[]} hashes
 */
export function groupsOf(hashes) {
  const different = [...new Set(hashes)];
  return hashes.map((hash) => different.indexOf(hash));
}

function kindOf(found) {
  if (found === null) return "none";
  return found.is_identical ? "identical" : "differ";
}

/** The badge in the card of the ranks. */
export class ReplicaBadge {
  constructor(summary) {
    this.why = summary.no_fingerprints;
    this.found = null;
    this.words = el("span", {}, "\u00a0");
    this.icon = el("span", {});
    this.element = el("p", { class: "ddp-replicas", role: "status" }, this.icon, this.words);
    // Reserve its space from the start, so that the layout does not shift.
    show(this.element, worldSize(summary.config) > 1);
  }

  /** Applies a message of the run's stream. */
  update({ fingerprints, head }) {
    if (fingerprints !== undefined) this.found = fingerprints;
    const words = replicaWords(this.found) ?? this.wordsWithout(head);
    show(this.element, head.num_ranks > 1);
    setText(this.words, words);
    const kind = kindOf(this.found);
    if (this.element.dataset.replicas !== kind) {
      this.icon.replaceChildren(
        ...(kind === "none" ? [] : [icon(kind === "identical" ? "check" : "warning")]),
      );
      this.element.dataset.replicas = kind;
    }
    setAttribute(this.element, "title", this.found === null ? this.why : replicaSentence(this.found));
  }

  wordsWithout({ state }) {
    if (this.why) return "replicas are not compared";
    return LIVE_STATES.has(state) ? "replicas: compared after the first step" : "replicas were not compared";
  }
}
