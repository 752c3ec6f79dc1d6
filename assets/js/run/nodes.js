// The ranks of a run on several nodes, grouped: one expandable row per node.

import { dropBeyond } from "./rank_cards.js";
import { el, setText } from "../shared/dom.js";

/**
 * The server's summary of a node.
 * @typedef {object} NodeRow
 * @property {number} node
 * @property {string | null} host
 * @property {number} num_ranks
 * @property {number} memory_bytes
 * @property {number | null} busy_percent
 * @property {number | null} idlest a rank
 * @property {number | null} idlest_percent
 * @property {number | null} slowest a rank
 * @property {number | null} slowest_s its step time without waiting
 * @property {number | null} grown_bytes
 */

/**
 * @param {{ fields: string[], rows: any[][] } | undefined} sent
 * @returns {NodeRow[] | undefined}
 */
export function nodeRows(sent) {
  return sent?.rows.map((row) => {
    const entries = sent.fields.map((field, index) => [field, row[index]]);
    return /** @type {NodeRow} */ (/** @type {unknown} */ (Object.fromEntries(entries)));
  });
}

/** Above this number of ranks only the first node starts open, and the ranks of closed nodes are not sent. */
const OPEN_UP_TO_RANKS = 16;

/** The margin around the viewport within which cards are drawn: one screen. */
const NEAR = "100%";

/** The nodes that start open; undefined if all do. */
export function openAtFirst(numRanks, numNodes) {
  return numNodes > 1 && numRanks > OPEN_UP_TO_RANKS ? [0] : undefined;
}

/**
 * Lays out the cards of ranks in a list, grouped by node if there are several.
 * @template {{ element: HTMLElement }} Card
 */
export class NodeGroups {
  /**
   * @param {HTMLElement} list
   * @param {Map<number, Card>} cards by rank
   * @param {() => void} onToggle
   */
  constructor(list, cards, onToggle = () => {}) {
    this.list = list;
    this.cards = cards;
    this.onToggle = onToggle;
    this.groups = new Map();
    this.numRanks = 0;
    this.numNodes = 1;
    this.sight = new IntersectionObserver((changes) => this.moved(changes), { rootMargin: NEAR });
    window.addEventListener("beforeprint", () => this.groups.forEach(drawWaiting));
  }

  /** Adapts to a resume on fewer ranks or on other nodes. */
  resize(numRanks, numNodes = 1) {
    for (const card of dropBeyond(this.cards, numRanks)) card.element.remove();
    if (numRanks === this.numRanks && numNodes === this.numNodes) return;
    [this.numRanks, this.numNodes] = [numRanks, numNodes];
    this.sight.disconnect();
    this.groups.clear();
    this.lay();
  }

  /** Shows all cards in rank order. */
  lay() {
    const inOrder = [...this.cards.keys()].sort((a, b) => a - b);
    if (this.numNodes === 1) {
      this.list.replaceChildren(...this.elements(inOrder));
      return;
    }
    const nodes = [...Array(this.numNodes).keys()];
    for (const node of nodes) {
      const ofNode = inOrder.filter((rank) => this.nodeOf(rank) === node);
      this.group(node).inside.replaceChildren(...this.elements(ofNode));
    }
    this.list.replaceChildren(...nodes.map((node) => this.group(node).element));
  }

  /** @param {number[]} ranks */
  elements(ranks) {
    return ranks.flatMap((rank) => this.cards.get(rank)?.element ?? []);
  }

  nodeOf(rank) {
    return Math.floor(rank / (this.numRanks / this.numNodes));
  }

  /** True if a rank's card is in an open row. */
  isOpen(rank) {
    return this.numNodes === 1 || this.group(this.nodeOf(rank)).element.open;
  }

  /**
   * Draws a part of a rank's card once its node is near the viewport, because only a few of hundreds are
   * visible.
   * @param {number} rank
   * @param {string} what the name of the part; a newer draw of the same part replaces a pending one
   * @param {() => void} draw
   */
  draw(rank, what, draw) {
    const group = this.numNodes === 1 ? null : this.group(this.nodeOf(rank));
    if (group === null || group.isInSight) draw();
    else group.waiting.set(`${what} of ${rank}`, draw);
  }

  /** @param {IntersectionObserverEntry[]} changes */
  moved(changes) {
    for (const { target, isIntersecting } of changes) {
      const group = [...this.groups.values()].find(({ inside }) => inside === target);
      if (!group) continue;
      group.isInSight = isIntersecting;
      if (isIntersecting) drawWaiting(group);
    }
  }

  /** The nodes whose rows are open. */
  open() {
    return [...this.groups].filter(([, { element }]) => element.open).map(([node]) => node);
  }

  /**
   * Shows a summary in the row of each node, and a mark on the node that stands out.
   * @param {NodeRow[]} rows
   * @param {(row: NodeRow) => string} words
   * @param {(row: NodeRow) => number | null} badness
   * @param {(most: number, next: number) => boolean} standsOut true if the worst value stands out from the
   * next
   * @param {string} mark the text of the mark
   */
  say(rows, words, badness, standsOut, mark) {
    if (this.numNodes === 1) return;
    const worst = outstanding(rows, badness, standsOut);
    for (const row of rows.filter(({ node }) => node < this.numNodes)) {
      const group = this.group(row.node);
      setText(group.name, row.host ? `node ${row.node} (${row.host})` : `node ${row.node}`);
      setText(group.words, words(row));
      setText(group.mark, row.node === worst ? mark : "");
    }
  }

  group(node) {
    if (!this.groups.has(node)) {
      const [name, words, mark] = [el("strong", {}, `node ${node}`), el("span", {}), el("em", {})];
      const inside = el("div", { class: `${this.list.classList[0]}-inside` });
      const row = el("summary", {}, name, words, mark);
      const element = el("details", { class: "ddp-node", "data-node": node }, row, inside);
      element.open = openAtFirst(this.numRanks, this.numNodes)?.includes(node) ?? true;
      element.addEventListener("toggle", this.onToggle);
      this.groups.set(node, { element, inside, name, words, mark, isInSight: false, waiting: new Map() });
      this.sight.observe(inside);
    }
    return this.groups.get(node);
  }
}

/** @param {{ waiting: Map<string, () => void> }} group */
function drawWaiting({ waiting }) {
  for (const draw of waiting.values()) draw();
  waiting.clear();
}

/**
 * Returns the node whose value stands out from all others, or undefined.
 * @param {NodeRow[]} rows
 * @param {(row: NodeRow) => number | null} badness
 * @param {(most: number, next: number) => boolean} standsOut
 * @returns {number | undefined}
 */
function outstanding(rows, badness, standsOut) {
  const [first, second] = rows
    .map((row) => ({ node: row.node, value: badness(row) ?? -Infinity }))
    .sort((a, b) => b.value - a.value);
  return first && second && standsOut(first.value, second.value) ? first.node : undefined;
}
