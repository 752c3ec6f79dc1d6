// The GPUs of this machine: utilization, memory, temperature, power and processes.

import { el, section, setText, show } from "../shared/dom.js";
import { bytes, count, UNKNOWN } from "../shared/format.js";
import { keepRows, Meter, runLink } from "./parts.js";

const NO_GPU = "This is slower, but the same distributed training: with GPUs, the page would use them.";

export class Gpus {
  constructor() {
    this.caption = el("p", { class: "ddp-caption" });
    this.list = el("ul", { class: "ddp-gpu-list" });
    this.empty = el("p", { class: "ddp-caption" }, NO_GPU);
    this.tiles = new Map();
    this.element = section("GPUs", "gpus", this.caption, this.empty, this.list);
  }

  update({ gpus, num_gpus_for_runs: forRuns, summary }) {
    const hidden = gpus.length - forRuns;
    setText(
      this.caption,
      hidden > 0
        ? `${summary} Runs started here see ${count(forRuns)} of the ${count(gpus.length)} (CUDA_VISIBLE_DEVICES).`
        : summary,
    );
    show(this.empty, gpus.length === 0);
    keepRows(
      this.list,
      gpus,
      (gpu) => gpu.index,
      (gpu) => this.tile(gpu),
      (row, gpu) => this.tiles.get(row).update(gpu),
    );
  }

  tile(gpu) {
    const tile = new GpuTile(gpu);
    this.tiles.set(tile.element, tile);
    return tile.element;
  }
}

class GpuTile {
  constructor(gpu) {
    const named = `GPU ${gpu.index}`;
    this.name = el("span", { class: "ddp-gpu-name" });
    this.use = el("b", {});
    this.useMeter = new Meter(`${named} busy`, ["used"]);
    this.memory = el("b", {});
    this.memoryMeter = new Meter(`${named} memory in use`, ["ours", "others"]);
    this.feel = el("p", { class: "ddp-hint" });
    this.nobody = el("p", { class: "ddp-hint" });
    this.users = el("ul", { class: "ddp-users", "aria-label": `Who uses ${named}` });
    this.element = el(
      "li",
      { class: "ddp-gpu" },
      el("h3", {}, named, this.name),
      el("p", { class: "ddp-gpu-line" }, "busy", this.use),
      this.useMeter.element,
      el("p", { class: "ddp-gpu-line" }, "memory", this.memory),
      this.memoryMeter.element,
      this.feel,
      this.nobody,
      this.users,
    );
  }

  update(gpu) {
    const { utilization_percent: busy, memory_used_bytes: used, memory_total_bytes: total } = gpu;
    const busyWords = busy === null ? UNKNOWN : `${Math.round(busy)}%`;
    setText(this.name, gpu.answers ? gpu.name : "does not answer");
    setText(this.use, busyWords);
    this.useMeter.update([busy === null ? null : busy / 100], busyWords);
    const ours = sumOf((gpu.processes ?? []).filter((process) => process.run_id !== null));
    const isKnown = used !== null && total > 0;
    const memoryWords = isKnown ? `${bytes(used)} of ${bytes(total)}` : UNKNOWN;
    setText(this.memory, memoryWords);
    this.memoryMeter.update(
      isKnown ? [Math.min(ours, used) / total, Math.max(0, used - ours) / total] : [null, null],
      memoryWords,
    );
    const readings = [feel(gpu.temperature_celsius, "°C"), feel(gpu.power_watts, "W")];
    setText(this.feel, readings.filter((words) => words !== null).join(" · "));
    this.updateUsers(gpu);
  }

  updateUsers({ answers, processes }) {
    show(this.nobody, !processes?.length);
    const unknown = answers ? "The driver does not report who uses it." : "See “What is missing” below.";
    setText(this.nobody, processes === null ? unknown : "Not in use.");
    keepRows(
      this.users,
      processes ?? [],
      (process) => process.pid,
      newUser,
      (row, process) => {
        setText(row.lastChild, bytes(process.memory_used_bytes));
      },
    );
  }
}

/** A process on a GPU: one of our runs with a link, others by their process name. */
function newUser(process) {
  const name = process.name ?? "a process that cannot be seen from here";
  const who = process.user === null ? "" : ` of ${process.user}`;
  const words = process.run_id === null ? `${name}${who} (pid ${process.pid})` : ` (pid ${process.pid})`;
  const link = process.run_id === null ? null : runLink(process.run_id);
  return el("li", {}, el("span", {}, link, words), el("span", {}));
}

function sumOf(processes) {
  return processes.reduce((sum, process) => sum + (process.memory_used_bytes ?? 0), 0);
}

function feel(value, unit) {
  return value === null ? null : `${Math.round(value)} ${unit}`;
}
