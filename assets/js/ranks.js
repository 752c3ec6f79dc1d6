// What each rank does in a step: fetching data, computing, waiting for the others.

import { el, section, setAttribute, setText, show } from "./dom.js";
import { bytes, count, shortTime, UNKNOWN } from "./format.js";

const CLEARLY_SLOWER = 1.5;
const TIMES_IN_A_ROW = 3;
const PARTS = ["data", "compute", "wait"];
const SHARING = {
  ddp: "After every backward pass DDP averages the gradients of all ranks, so each rank waits until the slowest has its own ready.",
  zero1: "Gradients are averaged as in DDP; then each rank updates its part of the weights and sends it to the others.",
  zero2: "Each rank keeps its part of gradients and optimizer state; the weights are gathered once for every step.",
  zero3: "Each rank keeps its part of everything; a layer's weights are gathered just before they are needed.",
  tensor: "All ranks work on the same samples, each on its part of every layer, and add up what they found.",
  pipeline: "Each rank has some of the layers; pieces of a batch travel from the first to the last and back.",
  data_tensor: "Some ranks share a copy of the model between them; the copies average their gradients.",
};
const PART_WORDS = { data: "fetching data", compute: "computing", wait: "waiting for the others" };

export class RanksPanel {
  /** `summary` says how the ranks share the work. */
  constructor(summary) {
    this.rows = new Map();
    this.devices = new Map();
    this.list = el("ol", { class: "ddp-ranks-list" });
    this.empty = el("p", { class: "ddp-empty" }, "Appears with the first steps: one bar for each rank.");
    this.slow = el("p", { class: "ddp-slowest", role: "status" }, "\u00a0");
    this.candidate = { rank: null, times: 0 };
    const legend = PARTS.map((part) =>
      el("span", {}, el("i", { class: `ddp-part ddp-part-${part}`, "aria-hidden": "true" }), PART_WORDS[part]),
    );
    this.element = section(
      "What each rank does",
      "ranks",
      el(
        "p",
        { class: "ddp-caption" },
        `${SHARING[summary.config.strategy] ?? SHARING.ddp} Shown is the newest measured step.`,
      ),
      el("div", { class: "ddp-legend" }, legend),
      this.empty,
      this.list,
      this.slow,
    );
  }

  update(ranks, devices) {
    for (const device of devices ?? []) this.devices.set(device.rank, device);
    const measured = (ranks ?? []).filter((rank) => rank.step_time_s !== null);
    if (ranks) {
      show(this.empty, ranks.length === 0);
      const longest = Math.max(...measured.map((rank) => rank.step_time_s), 1e-9);
      for (const rank of ranks) this.row(rank.rank).setStep(rank, longest);
      this.noteSlowest(measured);
    }
    for (const [rank, device] of this.devices) this.rows.get(rank)?.setDevice(device);
  }

  /** Names the slowest rank when it is clearly slower, several times in a row. */
  noteSlowest(measured) {
    const found = slowest(measured);
    const isSame = found !== null && found.rank === this.candidate.rank;
    this.candidate = { rank: found?.rank ?? null, times: isSame ? this.candidate.times + 1 : 1 };
    const isSure = found !== null && this.candidate.times >= TIMES_IN_A_ROW;
    const words = isSure
      ? `Rank ${found.rank} is the slowest: its own work takes ${found.factor.toFixed(1)} times as long as that of the others, who wait for it.`
      : "\u00a0";
    setText(this.slow, words);
  }

  row(rank) {
    if (!this.rows.has(rank)) {
      this.rows.set(rank, new Row(rank));
      const inOrder = [...this.rows.keys()].sort((a, b) => a - b).map((key) => this.rows.get(key).element);
      this.list.replaceChildren(...inOrder);
    }
    return this.rows.get(rank);
  }
}

/** The rank whose own work takes clearly longer than the others' (their median), or null. */
function slowest(measured) {
  // Without the waiting time the others' waiting would pass for work of their own.
  if (measured.length < 2 || measured.some((rank) => rank.wait_time_s === null)) return null;
  const own = measured
    .map((rank) => ({ rank: rank.rank, seconds: rank.step_time_s - (rank.wait_time_s ?? 0) }))
    .sort((a, b) => b.seconds - a.seconds);
  const others = own.slice(1);
  const median = others[Math.floor(others.length / 2)].seconds;
  const factor = own[0].seconds / Math.max(median, 1e-9);
  return factor >= CLEARLY_SLOWER ? { rank: own[0].rank, factor } : null;
}

class Row {
  constructor(rank) {
    this.step = el("span", {});
    this.device = el("span", { class: "ddp-rank-device" });
    this.times = el("p", { class: "ddp-rank-times" });
    this.parts = Object.fromEntries(PARTS.map((part) => [part, el("div", { class: `ddp-part ddp-part-${part}` })]));
    this.bar = el("div", { class: "ddp-rank-bar", role: "img" }, Object.values(this.parts));
    this.element = el(
      "li",
      {},
      el("div", { class: "ddp-rank-head" }, el("strong", {}, `rank ${rank}`), this.step, this.device),
      this.bar,
      this.times,
    );
  }

  setStep(rank, longest) {
    setText(this.step, `step ${count(rank.step)}`);
    if (rank.peak_memory_bytes) setAttribute(this.device, "title", `Most memory held so far: ${bytes(rank.peak_memory_bytes)}`);
    this.peak = rank.peak_memory_bytes ?? null;
    if (rank.step_time_s === null) {
      setText(this.times, "no step measured yet");
      return;
    }
    const wait = rank.wait_time_s;
    const seconds = { data: rank.data_time_s ?? 0, wait: wait ?? 0 };
    seconds.compute = Math.max(0, rank.step_time_s - seconds.data - seconds.wait);
    for (const part of PARTS) this.parts[part].style.width = `${(100 * seconds[part]) / longest}%`;
    const waiting = wait === null ? "waiting: not measured here" : `waiting ${shortTime(wait)}`;
    const words = `${shortTime(rank.step_time_s)} = data ${shortTime(rank.data_time_s)} + compute ${shortTime(seconds.compute)}`;
    setText(this.times, wait === null ? `${words} (${waiting})` : `${words} + ${waiting}`);
    setAttribute(this.bar, "aria-label", this.times.textContent);
  }

  setDevice(device) {
    const { utilization_percent: busy, memory_used_bytes: used, memory_total_bytes: total } = device;
    const words = [device.name ?? (device.kind === "cuda" ? `GPU ${device.index}` : "CPU")];
    words.push(busy === null ? `utilization ${UNKNOWN}` : `${Math.round(busy)}% busy`);
    if (used !== null) words.push(`${bytes(used)}${total === null ? "" : ` of ${bytes(total)}`}`);
    if (this.peak) words.push(`peak ${bytes(this.peak)}`);
    if (device.temperature_celsius !== null) words.push(`${Math.round(device.temperature_celsius)} °C`);
    if (device.power_watts !== null) words.push(`${Math.round(device.power_watts)} W`);
    setText(this.device, words.join(" · "));
  }
}
