// The devices of all ranks as small multiples: the same curves for each, with their current values.

import { NodeGroups } from "./nodes.js";
import { dropBeyond } from "./rank_cards.js";
import { el, section, setAttribute, setText, svg } from "../shared/dom.js";
import { bytes, LIVE_STATES, UNKNOWN } from "../shared/format.js";

const WIDTH = 200;
const HEIGHT = 44;
const DRAW_EVERY_MS = 900;
// The minimum number of samples per second for a rate of a run that has ended.
const MIN_SAMPLES = 2;
// A node is marked as the least busy if one of its ranks is less busy than all others by at least this much.
const LESS_BUSY_PERCENT = 15;

const percent = (value) => `${Math.round(value)}%`;
const MEASURES = {
  utilization: { title: "busy", words: percent, top: () => 100, isRate: true },
  memory: {
    title: "memory",
    words: bytes,
    top: (device, highest) => (device?.kind === "cuda" ? (device.memory_total_bytes ?? highest) : highest),
  },
  temperature: { title: "temperature", words: (value) => `${Math.round(value)} °C`, top: () => 100 },
  power: { title: "power", words: (value) => `${Math.round(value)} W`, top: (_, highest) => highest },
};

export class DevicesPanel {
  /** @param {() => void} onToggle called when the row of a node is opened or closed */
  constructor(onToggle = () => {}) {
    this.cards = new Map();
    this.devices = new Map();
    this.drawnAt = -Infinity;
    this.list = el("div", { class: "ddp-devices-list" });
    this.groups = new NodeGroups(this.list, this.cards, onToggle);
    this.empty = el(
      "p",
      { class: "ddp-empty" },
      "Appears with the first measurement: once a second, one card for each rank.",
    );
    this.element = section("Every rank's device", "devices", this.empty, this.list);
    this.title = this.element.querySelector("h2");
  }

  update(traces, devices, nodes, isSnapshot, head) {
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
        const held = `${ranks} rank${ranks === 1 ? "" : "s"}, memory ${bytes(memory)}`;
        return busy === null
          ? held
          : `${held}, busy ${percent(busy)}, least rank ${idlest}: ${percent(least)}`;
      },
      ({ idlest_percent: least }) => (least === null ? null : 100 - least),
      (most, next) => most - next >= LESS_BUSY_PERCENT,
      "least busy",
    );
  }

  /** The maximum of each measure over all ranks: the cards share their scales. */
  highest(traces, ranks) {
    return Object.fromEntries(
      Object.keys(MEASURES).map((name) => [
        name,
        ranks.reduce(
          (top, rank) => traces.get(`${name}:${rank}`).y.reduce((a, b) => Math.max(a, b ?? 0), top),
          0,
        ) || 1,
      ]),
    );
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
    this.picture = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      this.ground,
      this.line,
    );
    this.value = el("dd", {});
    this.element = el(
      "div",
      { class: "ddp-curve" },
      el("dt", {}, title),
      this.value,
      el("dd", { class: "ddp-curve-picture" }, this.picture),
    );
  }

  update({ x, y }, { words, isRate }, top, isOver) {
    const last = y.at(-1);
    const known = y.filter((value) => value !== null);
    const isTooShort = isRate && isOver && known.length < MIN_SAMPLES;
    if (isTooShort) setText(this.value, "too short to measure");
    else setText(this.value, last === null || last === undefined ? UNKNOWN : words(last));
    const range =
      known.length > 0 ? `from ${words(Math.min(...known))} to ${words(Math.max(...known))}` : "not measured";
    setAttribute(this.picture, "aria-label", `${this.title} since the start: ${range}`);
    const span = Math.max(x.at(-1), 1);
    const points = x.map((at, index) => [
      (at / span) * WIDTH,
      y[index] === null ? null : HEIGHT - 2 - (Math.min(y[index], top) / top) * (HEIGHT - 4),
    ]);
    let command = "M";
    let path = "";
    for (const [left, height] of points) {
      if (height === null) {
        command = "M";
        continue;
      }
      path += `${command}${left.toFixed(1)},${height.toFixed(1)}`;
      command = "L";
    }
    this.line.setAttribute("d", path);
    const drawn = points.filter(([, height]) => height !== null);
    this.ground.setAttribute(
      "d",
      drawn.length > 1
        ? `M${drawn[0][0].toFixed(1)},${HEIGHT}L${drawn.map(([left, height]) => `${left.toFixed(1)},${height.toFixed(1)}`).join("L")}L${drawn.at(-1)[0].toFixed(1)},${HEIGHT}Z`
        : "",
    );
  }
}
