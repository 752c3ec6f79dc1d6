// The ranks of a run on several machines, grouped: one row a machine that opens.

import { dropBeyond } from "./rank_cards.js";
import { el, setText } from "../shared/dom.js";

/** With more ranks in all, every machine is closed at first. */
const OPEN_UP_TO_RANKS = 16;

/**
 * Lays cards of ranks out in a list; those of one machine without a group.
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
    this.hosts = new Map();
    this.numRanks = 0;
    this.numNodes = 1;
  }

  /** A run may be resumed on fewer ranks, or on other machines. */
  resize(numRanks, numNodes = 1) {
    for (const card of dropBeyond(this.cards, numRanks)) card.element.remove();
    if (numRanks === this.numRanks && numNodes === this.numNodes) return;
    [this.numRanks, this.numNodes] = [numRanks, numNodes];
    this.groups.clear();
    this.lay();
  }

  /** Shows all cards there are, in order. */
  lay() {
    const inOrder = [...this.cards.keys()].sort((a, b) => a - b);
    if (this.numNodes === 1) {
      this.list.replaceChildren(...this.elements(inOrder));
      return;
    }
    const nodes = [...new Set(inOrder.map((rank) => this.nodeOf(rank)))];
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

  /** Whether somebody can see a rank's card. */
  isOpen(rank) {
    return this.numNodes === 1 || this.group(this.nodeOf(rank)).element.open;
  }

  noteHosts(devices) {
    for (const { node, host } of devices ?? []) if (host) this.hosts.set(node, host);
  }

  name(node) {
    const host = this.hosts.get(node);
    return host === undefined ? `node ${node}` : `node ${node} (${host})`;
  }

  /**
   * Says in the row of each machine how its ranks do, and which of all is the worst.
   * @param {Map<number, string>} words by machine
   * @param {number | undefined} worst that machine
   * @param {string} mark what it is called
   */
  say(words, worst, mark) {
    if (this.numNodes === 1) return;
    for (const [node, said] of words) {
      const group = this.group(node);
      setText(group.name, this.name(node));
      setText(group.words, said);
      setText(group.mark, node === worst ? mark : "");
    }
  }

  group(node) {
    if (!this.groups.has(node)) {
      const [name, words, mark] = [el("strong", {}, this.name(node)), el("span", {}), el("em", {})];
      const inside = el("div", { class: `${this.list.classList[0]}-inside` });
      const row = el("summary", {}, name, words, mark);
      const element = el("details", { class: "ddp-node", "data-node": node }, row, inside);
      element.open = this.numRanks <= OPEN_UP_TO_RANKS;
      element.addEventListener("toggle", this.onToggle);
      this.groups.set(node, { element, inside, name, words, mark });
    }
    return this.groups.get(node);
  }
}

/**
 * Returns the machine whose value stands out from all others; undefined where none does.
 * @param {Map<number, number>} values by machine
 * @param {(value: number, next: number) => boolean} standsOut whether the highest does, beside the next
 * @returns {number | undefined}
 */
export function outstanding(values, standsOut) {
  const [first, second] = [...values].sort((a, b) => b[1] - a[1]);
  return first && second && standsOut(first[1], second[1]) ? first[0] : undefined;
}

/**
 * Returns values by machine.
 * @template Value
 * @param {Map<number, Value>} byRank
 * @param {(rank: number) => number} nodeOf
 * @returns {Map<number, [number, Value][]>} pairs of rank and value
 */
export function byNode(byRank, nodeOf) {
  const found = new Map();
  for (const [rank, value] of byRank) {
    const node = nodeOf(rank);
    if (!found.has(node)) found.set(node, []);
    found.get(node).push([rank, value]);
  }
  return found;
}
