// Processor, memory and disk: current value, bar, and users.

import { el, icon, section, setAttribute, setText, show } from "../shared/dom.js";
import { bytes, count, duration, rate } from "../shared/format.js";
import { runPage } from "../shared/net.js";
import { paragraph, updateRows } from "../shared/widgets.js";

const SECONDS_PER_MINUTE = 60;

/** A bar of one or more segments with a text for screen readers. */
export class Meter {
  constructor(label, partNames) {
    this.parts = partNames.map((name) => el("span", { class: `ddp-meter-part ddp-meter-${name}` }));
    this.element = el(
      "div",
      { class: "ddp-meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 },
      this.parts,
    );
  }

  /** `shares`: a fraction per segment, null if unknown. */
  update(shares, text) {
    let filled = 0;
    shares.forEach((part, index) => {
      const percent = Math.min(100 - filled, Math.max(0, 100 * (part ?? 0)));
      filled += percent;
      this.parts[index].style.width = `${percent.toFixed(2)}%`;
    });
    setAttribute(this.element, "aria-valuenow", Math.round(filled));
    setAttribute(this.element, "aria-valuetext", text);
  }
}

/** An entry of a list: a title, with a sign if it has a problem, and details. @param {string | null} problem */
export function listed(title, problem, ...details) {
  const sign = problem === null ? null : el("span", { class: "ddp-missing-sign" }, icon("warning"), problem);
  return el("li", { "data-problem": problem !== null }, el("h3", {}, title, sign), details);
}

/** A link to a run's page. */
export function runLink(runId) {
  return el("a", { href: runPage(runId) }, runId);
}

/** The legend of a bar: colour, name and amount of each segment. */
class Legend {
  constructor(entries) {
    this.values = entries.map(() => el("b", {}));
    const items = entries.map(([name, text], index) => {
      const sign = el("span", { class: `ddp-meter-sign ddp-meter-${name}`, "aria-hidden": "true" });
      return el("li", {}, sign, el("span", {}, text), this.values[index]);
    });
    this.element = el("ul", { class: "ddp-meter-legend" }, items);
  }

  update(...texts) {
    texts.forEach((text, index) => setText(this.values[index], text));
  }
}

export class Processor {
  constructor() {
    this.value = paragraph("figure");
    this.name = paragraph("figure-note");
    this.meter = new Meter("Processor in use", ["used"]);
    this.cores = el("div", { class: "ddp-cores", role: "img" });
    this.description = paragraph("hint");
    const parts = [this.value, this.name, this.meter, this.cores, this.description];
    this.element = section("Processor", "processor", parts);
  }

  update({ cpu }) {
    const cores = cpu.core_percents;
    const text = `${Math.round(cpu.percent)}%`;
    setText(this.value, text);
    setText(this.name, `busy · ${cpu.name}`);
    this.meter.update([cpu.percent / 100], text);
    while (this.cores.children.length > cores.length) this.cores.lastChild.remove();
    while (this.cores.children.length < cores.length) {
      this.cores.append(el("span", { class: "ddp-core" }, el("span", {})));
    }
    cores.forEach((percent, index) => (this.cores.children[index].firstChild.style.height = `${percent}%`));
    const rounded = cores.map((percent) => `${Math.round(percent)}%`).join(", ");
    setAttribute(this.cores, "aria-label", `Each core: ${rounded}`);
    const ours = cpu.num_cores_for_runs;
    const each = cores.length === 1 ? "One core" : `Each of the ${count(cores.length)} cores`;
    const limit = ours < cores.length ? `; ranks may use ${count(ours)} of them` : ", over the last seconds";
    setText(this.description, `${each}${limit}.`);
  }
}

/** How much of a memory or a disk is free, with a bar for our runs and everything else. */
class Space {
  constructor(label) {
    this.value = paragraph("figure");
    this.note = paragraph("figure-note");
    this.meter = new Meter(label, ["ours", "others"]);
    const entries = { ours: "our runs", others: "everything else", free: "free" };
    this.legend = new Legend(Object.entries(entries));
    this.elements = [this.value, this.note, this.meter, this.legend];
  }

  /** Shows sizes in bytes; `oursText` replaces the size of our runs, `words` describe the bar. */
  update({ free, total, ours }, text, oursText = amount(ours)) {
    const others = Math.max(0, total - free - (ours ?? 0));
    setText(this.value, bytes(free));
    setText(this.note, `free of ${bytes(total)}`);
    this.meter.update([share(ours, total), share(others, total)], text);
    this.legend.update(oursText, bytes(others), bytes(free));
  }
}

export class Memory {
  constructor() {
    this.space = new Space("Memory in use");
    this.runs = el("ul", { class: "ddp-users" });
    this.standby = paragraph("hint");
    this.element = section("Memory", "memory", this.space.elements, this.runs, this.standby);
  }

  update({ memory, runs, standby }) {
    const { used_bytes: used, total_bytes: total, runs_bytes: ours } = memory;
    const text = `${bytes(used)} of ${bytes(total)} in use, ${bytes(ours)} by our runs`;
    this.space.update({ free: total - used, total, ours }, text);
    const newRow = ({ run_id: runId }) => el("li", {}, runLink(runId), el("span", {}));
    const fill = (row, { num_processes: num, memory_bytes: size }) =>
      setText(row.lastChild, `${num === 1 ? "1 process" : `${count(num)} processes`}, ${bytes(size)}`);
    updateRows(this.runs, runs, (run) => run.run_id, newRow, fill);
    show(this.standby, Boolean(standby));
    const size = bytes(standby?.memory_bytes);
    setText(
      this.standby,
      `A process is kept warm, so that the next run starts immediately. It uses ${size}, which it frees when memory runs low.`,
    );
  }
}

export class Disk {
  constructor() {
    this.space = new Space("Disk in use");
    this.forecast = el("p", { class: "ddp-forecast" });
    this.path = el("code", {});
    const where = paragraph("hint", "In ", this.path);
    this.element = section("Disk of the runs", "disk", this.space.elements, this.forecast, where);
  }

  update({ disk }) {
    const { free_bytes: free, total_bytes: total, runs_bytes: ours } = disk;
    const text = `${bytes(free)} of ${bytes(total)} free, ${bytes(ours)} used by our runs`;
    this.space.update({ free, total, ours }, text, ours === null ? "being counted …" : amount(ours));
    setText(this.forecast, forecastText(disk.forecast));
    setText(this.path, disk.path);
  }
}

/** Response delays: one process serves all requests, one at a time. */
export class Answering {
  constructor() {
    this.value = paragraph("figure");
    this.note = paragraph("figure-note");
    this.longest = el("p", {});
    const why =
      "One process answers everyone, one request at a time. While it works on one, the others wait.";
    const parts = [this.value, this.note, this.longest, paragraph("hint", why)];
    this.element = section("How quickly this page answers", "answering", parts);
  }

  update({ event_loop: loop }) {
    setText(this.value, loop.worst_s === null ? "…" : milliseconds(loop.worst_s));
    setText(this.note, `the longest wait in the last ${count(loop.window_s / SECONDS_PER_MINUTE)} minutes`);
    setText(this.longest, answeringText(loop));
  }
}

/** The usual delay, and the request that blocked the others longest. */
function answeringText(loop) {
  if (loop.p99_s === null) return "Measuring …";
  const usual = `99 of 100 measured waits were at most ${milliseconds(loop.p99_s)}.`;
  if (loop.held_s === null) return usual;
  const which = loop.held_by === null ? "" : `, for ${loop.held_by}`;
  const computed = `${milliseconds(loop.held_cpu_s)} of them on the processor`;
  return `${usual} The longest uninterrupted work took ${milliseconds(loop.held_s)} (${computed})${which}.`;
}

function milliseconds(seconds) {
  return seconds < 0.001 ? "less than 1 ms" : `${count(1000 * seconds)} ms`;
}

/** The forecast of the disk usage and the measurement behind it. */
function forecastText(forecast) {
  const { state, needs_s: needs, lasts_s: lasts } = forecast;
  const span = duration(forecast.measured_over_s);
  if (state === "no_run") return "No run is live, so nothing is being written.";
  if (state === "not_growing") return `The live runs have not grown in the last ${span}.`;
  if (state === "measuring") {
    return `Measuring how fast the live runs write: known after ${duration(needs)}, ${span} so far.`;
  }
  const rest =
    state === "too_slow"
      ? "the disk will last for more than a year"
      : `at this rate the disk lasts about ${duration(lasts)}`;
  return `The live runs write ${perMinute(forecast)} (measured over ${span}): ${rest}.`;
}

function perMinute(forecast) {
  return forecast.bytes_per_s >= 1e6
    ? rate(forecast.bytes_per_s)
    : `${bytes(forecast.bytes_per_s * SECONDS_PER_MINUTE)} a minute`;
}

function amount(value) {
  return value === 0 ? "nothing" : bytes(value);
}

function share(part, whole) {
  return part === null || !whole ? null : part / whole;
}
