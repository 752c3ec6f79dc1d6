// The devices of all ranks as small multiples: the same curves for each, with their current values.

import { el, section, setAttribute, setText, svg } from "../shared/dom.js";
import { LIVE_STATES, UNKNOWN, bytes } from "../shared/format.js";
import { paragraph } from "../shared/widgets.js";
import { pathOf } from "../charts/plot.js";

/**
 * Removes the entries of ranks that no longer exist from a map, and returns them.
 * @template Card
 * @param {Map<number, Card>} cards
 * @param {number} numRanks
 * @returns {Card[]}
 */
function dropBeyond(cards, numRanks) {
  const gone = [...cards].filter(([rank]) => rank >= numRanks);
  for (const [rank] of gone) cards.delete(rank);
  return gone.map(([, card]) => card);
}

// The ranks of a run on several nodes, grouped: one expandable row per node.

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
export function initiallyOpenNodes(numRanks, numNodes) {
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
   * @param {string} what name of the part; a newer draw of the same part replaces a pending one
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
   * @param {(row: NodeRow) => string} text
   * @param {(row: NodeRow) => number | null} badness
   * @param {(most: number, next: number) => boolean} standsOut true if the worst value stands out from the
   * next
   * @param {string} mark the text of the mark
   */
  say(rows, text, badness, standsOut, mark) {
    if (this.numNodes === 1) return;
    const worst = outstanding(rows, badness, standsOut);
    for (const row of rows.filter(({ node }) => node < this.numNodes)) {
      const group = this.group(row.node);
      setText(group.name, row.host ? `node ${row.node} (${row.host})` : `node ${row.node}`);
      setText(group.text, text(row));
      setText(group.mark, row.node === worst ? mark : "");
    }
  }

  group(node) {
    if (!this.groups.has(node)) {
      const [name, text, mark] = [el("strong", {}, `node ${node}`), el("span", {}), el("em", {})];
      const inside = el("div", { class: `${this.list.classList[0]}-inside` });
      const row = el("summary", {}, name, text, mark);
      const element = el("details", { class: "ddp-node", "data-node": node }, row, inside);
      element.open = initiallyOpenNodes(this.numRanks, this.numNodes)?.includes(node) ?? true;
      element.addEventListener("toggle", this.onToggle);
      this.groups.set(node, { element, inside, name, text, mark, isInSight: false, waiting: new Map() });
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

const WIDTH = 200;
const HEIGHT = 44;
const DRAW_EVERY_MS = 900;
// The minimum number of samples per second for a rate of a run that has ended.
const MIN_SAMPLES = 2;
// A node is marked as the least busy if one of its ranks is less busy than all others by at least this much.
const LESS_BUSY_PERCENT = 15;

const percent = (value) => `${Math.round(value)}%`;
const MEASURES = {
  utilization: { title: "busy", format: percent, top: () => 100, isRate: true },
  memory: {
    title: "memory",
    format: bytes,
    top: (device, highest) => (device?.kind === "cuda" ? (device.memory_total_bytes ?? highest) : highest),
  },
  temperature: { title: "temperature", format: (value) => `${Math.round(value)} °C`, top: () => 100 },
  power: { title: "power", format: (value) => `${Math.round(value)} W`, top: (_, highest) => highest },
};

export class DevicesPanel {
  /** @param {() => void} onToggle called when the row of a node is opened or closed */
  constructor(onToggle = () => {}) {
    this.cards = new Map();
    this.devices = new Map();
    this.drawnAt = -Infinity;
    this.list = el("div", { class: "ddp-devices-list" });
    this.groups = new NodeGroups(this.list, this.cards, onToggle);
    const text = "One card for each rank appears after the first measurement, and is updated every second.";
    this.empty = paragraph("empty", text);
    this.element = section("Every rank's device", "devices", this.empty, this.list);
    this.title = this.element.querySelector("h2");
  }

  update({ traces, devices, nodes, isSnapshot, head }) {
    const numRanks = head.num_ranks;
    const isOver = !LIVE_STATES.has(head.state);
    this.groups.resize(numRanks, head.num_nodes);
    if (nodes) this.sayNodes(nodes);
    dropBeyond(this.devices, numRanks);
    for (const device of devices ?? []) if (device.rank < numRanks) this.devices.set(device.rank, device);
    const now = performance.now();
    const isNews = isSnapshot || isOver !== this.isOver || (devices && now - this.drawnAt >= DRAW_EVERY_MS);
    if (!isNews) return;
    this.isOver = isOver;
    this.drawnAt = now;
    const names = traces.named("utilization:").concat(traces.named("memory:"));
    const ranks = [...new Set(names.map((name) => Number(name.split(":")[1])))]
      .filter((rank) => rank < numRanks)
      .sort((a, b) => a - b);
    this.empty.hidden = ranks.length > 0;
    const isCuda = [...this.devices.values()].some((device) => device.kind === "cuda");
    setText(this.title, isCuda ? "Every GPU" : "Every CPU rank");
    if (ranks.some((rank) => !this.cards.has(rank))) this.addCards(ranks);
    const open = ranks.filter((rank) => this.groups.isOpen(rank));
    const highest = this.highest(traces, open);
    for (const rank of open) {
      const card = this.cards.get(rank);
      this.groups.draw(rank, "card", () => card.update(traces, this.devices.get(rank), highest, isOver));
    }
  }

  addCards(ranks) {
    for (const rank of ranks) if (!this.cards.has(rank)) this.cards.set(rank, new Card(rank));
    this.groups.lay();
  }

  /**
   * Shows the load of each node and its least busy rank, which may be the rank that slows the others down.
   */
  sayNodes(rows) {
    this.groups.say(
      rows,
      ({ num_ranks: ranks, memory_bytes: memory, busy_percent: busy, idlest, idlest_percent: least }) => {
        const ownRuns = `${ranks} rank${ranks === 1 ? "" : "s"}, memory ${bytes(memory)}`;
        return busy === null
          ? ownRuns
          : `${ownRuns}, busy ${percent(busy)}, least rank ${idlest}: ${percent(least)}`;
      },
      ({ idlest_percent: least }) => (least === null ? null : 100 - least),
      (most, next) => most - next >= LESS_BUSY_PERCENT,
      "least busy",
    );
  }

  /** The maximum of each measure over all ranks: the cards share their scales. */
  highest(traces, ranks) {
    const largest = (name, rank) => traces.get(`${name}:${rank}`).y.reduce((a, b) => Math.max(a, b ?? 0), 0);
    const top = (name) => Math.max(0, ...ranks.map((rank) => largest(name, rank))) || 1;
    return Object.fromEntries(Object.keys(MEASURES).map((name) => [name, top(name)]));
  }
}

class Card {
  constructor(rank) {
    this.rank = rank;
    this.name = el("span", { class: "ddp-device-name" });
    this.curves = new Map();
    this.grid = el("dl", { class: "ddp-device-curves" });
    this.element = el(
      "article",
      { class: "ddp-device", "aria-label": `rank ${rank}` },
      el("p", {}, el("strong", {}, `rank ${rank}`), this.name),
      this.grid,
    );
  }

  update(traces, device, highest, isOver) {
    if (device) setText(this.name, device.name ?? (device.kind === "cuda" ? `GPU ${device.index}` : "CPU"));
    for (const [name, measure] of Object.entries(MEASURES)) {
      const trace = traces.get(`${name}:${this.rank}`);
      // Measures that do not exist for a device (such as the temperature of a CPU rank) get no curve.
      if (trace.x.length === 0) continue;
      this.curve(name, measure).update(trace, measure, measure.top(device, highest[name]), isOver);
    }
  }

  curve(name, measure) {
    if (!this.curves.has(name)) {
      this.curves.set(name, new Curve(measure.title));
      const inOrder = Object.keys(MEASURES).filter((key) => this.curves.has(key));
      this.grid.replaceChildren(...inOrder.map((key) => this.curves.get(key).element));
    }
    return this.curves.get(name);
  }
}

class Curve {
  constructor(title) {
    this.title = title;
    this.line = svg("path", { class: "ddp-curve-line" });
    this.ground = svg("path", { class: "ddp-curve-ground" });
    const frame = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
    this.picture = svg("svg", frame, this.ground, this.line);
    this.value = el("dd", {});
    const picture = el("dd", { class: "ddp-curve-picture" }, this.picture);
    this.element = el("div", { class: "ddp-curve" }, el("dt", {}, title), this.value, picture);
  }

  update({ x, y }, { format, isRate }, top, isOver) {
    const last = y.at(-1);
    const known = y.filter((value) => value !== null);
    const isTooShort = isRate && isOver && known.length < MIN_SAMPLES;
    if (isTooShort) setText(this.value, "too short to measure");
    else setText(this.value, last === null || last === undefined ? UNKNOWN : format(last));
    const range =
      known.length > 0
        ? `from ${format(Math.min(...known))} to ${format(Math.max(...known))}`
        : "not measured";
    setAttribute(this.picture, "aria-label", `${this.title} since the start: ${range}`);
    const span = Math.max(x.at(-1), 1);
    const points = x.map((at, index) => [
      (at / span) * WIDTH,
      y[index] === null ? null : HEIGHT - 2 - (Math.min(y[index], top) / top) * (HEIGHT - 4),
    ]);
    this.line.setAttribute("d", pathOf(points));
    const drawn = points.filter(([, height]) => height !== null);
    const area = pathOf([[drawn[0]?.[0] ?? 0, HEIGHT], ...drawn, [drawn.at(-1)?.[0] ?? 0, HEIGHT]]);
    this.ground.setAttribute("d", drawn.length > 1 ? `${area}Z` : "");
  }
}
