// The GPUs of this machine with their users, and the SSH hosts of runs with the bandwidth between them.

import { person } from "../auth/person.js";
import { orShowError } from "../shared/dialog.js";
import { el, section, setAttribute, setText, show } from "../shared/dom.js";
import { UNKNOWN, bytes, count, dateTime, rate, shortTime } from "../shared/format.js";
import { callEndpoint } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { Meter, listed, runLink } from "./parts.js";
import { buttonRow, paragraph, textButton, updateRows } from "../shared/widgets.js";

const NO_GPU = "This is slower, but the same distributed training: with GPUs, the page would use them.";

export class Gpus {
  constructor() {
    this.caption = paragraph("caption");
    this.list = el("ul", { class: "ddp-gpu-list" });
    this.empty = paragraph("caption", NO_GPU);
    this.tiles = new Map();
    this.element = section("GPUs", "gpus", this.caption, this.empty, this.list);
  }

  update({ gpus, num_gpus_for_runs: forRuns, summary }) {
    const some = ` Runs started here see ${count(forRuns)} of the ${count(gpus.length)} (CUDA_VISIBLE_DEVICES).`;
    setText(this.caption, `${summary}${gpus.length > forRuns ? some : ""}`);
    show(this.empty, gpus.length === 0);
    const newTile = (gpu) => {
      const tile = new GpuTile(gpu);
      this.tiles.set(tile.element, tile);
      return tile.element;
    };
    const fill = (row, gpu) => this.tiles.get(row).update(gpu);
    updateRows(this.list, gpus, (gpu) => gpu.index, newTile, fill);
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
    this.feel = paragraph("hint");
    this.nobody = paragraph("hint");
    this.users = el("ul", { class: "ddp-users", "aria-label": `Who uses ${named}` });
    this.element = el(
      "li",
      { class: "ddp-gpu" },
      el("h3", {}, named, this.name),
      paragraph("gpu-line", "busy", this.use),
      this.useMeter,
      paragraph("gpu-line", "memory", this.memory),
      this.memoryMeter,
      this.feel,
      this.nobody,
      this.users,
    );
  }

  update(gpu) {
    const { utilization_percent: busy, memory_used_bytes: used, memory_total_bytes: total } = gpu;
    const busyText = busy === null ? UNKNOWN : `${Math.round(busy)}%`;
    setText(this.name, gpu.answers ? gpu.name : "does not answer");
    setText(this.use, busyText);
    this.useMeter.update([busy === null ? null : busy / 100], busyText);
    const ours = sumOf((gpu.processes ?? []).filter((process) => process.run_id !== null));
    const isKnown = used !== null && total > 0;
    const memoryText = isKnown ? `${bytes(used)} of ${bytes(total)}` : UNKNOWN;
    setText(this.memory, memoryText);
    const shares = [Math.min(ours, used) / total, Math.max(0, used - ours) / total];
    this.memoryMeter.update(isKnown ? shares : [null, null], memoryText);
    const readings = [feel(gpu.temperature_celsius, "°C"), feel(gpu.power_watts, "W")];
    setText(this.feel, readings.filter((text) => text !== null).join(" · "));
    this.updateUsers(gpu);
  }

  updateUsers({ answers, processes }) {
    show(this.nobody, !processes?.length);
    const unknown = answers ? "The driver does not report who uses it." : "See “What is missing” below.";
    setText(this.nobody, processes === null ? unknown : "Not in use.");
    const fill = (row, process) => setText(row.lastChild, bytes(process.memory_used_bytes));
    updateRows(this.users, processes ?? [], (process) => process.pid, newUser, fill);
  }
}

/** A process on a GPU: one of our runs with a link, others by their process name. */
function newUser(process) {
  const name = process.name ?? "a process that cannot be seen from here";
  const owner = process.user === null ? "" : ` of ${process.user}`;
  const text = process.run_id === null ? `${name}${owner} (pid ${process.pid})` : ` (pid ${process.pid})`;
  const link = process.run_id === null ? null : runLink(process.run_id);
  return el("li", {}, el("span", {}, link, text), el("span", {}));
}

function sumOf(processes) {
  return processes.reduce((sum, process) => sum + (process.memory_used_bytes ?? 0), 0);
}

function feel(value, unit) {
  return value === null ? null : `${Math.round(value)} ${unit}`;
}

// The bandwidth between hosts, measured pair by pair on request.

// An example model for students: 10 million parameters in float32.
const EXAMPLE_BYTES = 40e6;

/** The button and the latest measurements. */
class Links {
  constructor() {
    this.isTeacher = true;
    this.isRunning = false;
    this.start = textButton("Measure between hosts", () => this.begin(), "main");
    this.now = el("p", { class: "ddp-hint", role: "status" });
    this.list = el("ul", { class: "ddp-missing-list" });
    const caption = paragraph(
      "caption",
      "In every step the hosts average their ",
      term("gradient", "gradients"),
      " over the network. This runs real ",
      term("all-reduce", "all-reduces"),
      " between neighbours, a few seconds for each pair; hosts that train are skipped.",
    );
    this.element = el(
      "div",
      { class: "ddp-host-links" },
      caption,
      buttonRow(this.start, this.now),
      this.list,
    );
    person().then(({ role }) => {
      this.isTeacher = role === "teacher";
      this.setButton();
    });
  }

  /** Shows the latest measurement from the report. */
  update(check) {
    show(this.element, check.num_links > 0);
    this.isRunning = check.is_running;
    this.setButton();
    setText(this.now, wordsOf(check));
    updateRows(this.list, check.links, JSON.stringify, newLink);
  }

  async begin() {
    this.start.disabled = true;
    const check = await orShowError(callEndpoint("measure_links"));
    if (check) this.update(check);
    else this.setButton();
  }

  setButton() {
    this.start.disabled = this.isRunning || !this.isTeacher;
    setAttribute(this.start, "aria-busy", this.isRunning);
  }
}

function wordsOf(check) {
  if (check.error) return check.error;
  if (check.started_unix_s === null) return "";
  const done = `${count(check.links.length)} of ${count(check.num_links)}`;
  return check.is_running ? `Measuring: ${done} done …` : `Measured ${dateTime(check.started_unix_s)}.`;
}

function newLink(link) {
  const measured = link.bytes_per_s === null ? null : el("p", {}, figures(link));
  const problem = link.problem === "" ? null : el("p", {}, link.problem);
  return listed(link.hosts.join(" – "), problem && "", measured, problem);
}

function figures(link) {
  return [
    rate(link.bytes_per_s),
    `${shortTime(link.latency_s)} for a small message`,
    `${shortTime(EXAMPLE_BYTES / link.bytes_per_s)} a step for the gradients of 10 million parameters`,
    link.backend,
  ].join(" · ");
}

// The SSH hosts of runs: state, hardware, versions and problems of each.

/** The section of the hosts; hidden if runs train on this machine. */
export function hostsSection() {
  const lead = paragraph("caption");
  const list = el("ul", { class: "ddp-missing-list" });
  const links = new Links();
  const element = section("Hosts", "hosts", lead, list, links);
  show(element, false);
  return {
    element,
    update({ hosts, links: measured }) {
      show(element, hosts !== null);
      if (hosts === null) return;
      links.update(measured);
      setText(lead, leadText(hosts));
      updateRows(list, hosts, JSON.stringify, newHost);
    },
  };
}

function leadText(hosts) {
  if (hosts.length === 0) return "Asking each host …";
  const troubled = hosts.filter((host) => host.problems.length > 0).length;
  const free = hosts.filter((host) => host.is_reachable && host.run_id === "").length;
  const state = `${count(free)} of ${count(hosts.length)} can take a run now.`;
  return troubled === 0
    ? `${state} All fit together.`
    : `${state} ${count(troubled)} ${troubled === 1 ? "needs" : "need"} attention.`;
}

function newHost(host) {
  const train = host.run_id === "" ? "free" : ["trains ", runLink(host.run_id)];
  const title = [host.name, " · ", host.is_reachable ? train : "not reached"];
  const details = host.is_reachable ? el("p", {}, facts(host).join(" · ")) : null;
  const problems = host.problems.map((text) => el("p", {}, text));
  return listed(title, problems.length > 0 ? "" : null, details, problems);
}

function facts(host) {
  const gpus = host.gpu_names.length === 0 ? "no GPU" : host.gpu_names.join(", ");
  const users = host.gpu_users.length === 0 ? [] : [`GPUs used by ${host.gpu_users.join(", ")}`];
  const clock = host.clock_off_s === null ? [] : [clockText(host.clock_off_s)];
  return [
    gpus,
    ...users,
    `${count(host.num_cores)} cores`,
    `${bytes(host.memory_bytes)} memory`,
    host.torch === null ? "no torch" : `torch ${host.torch}`,
    ...codeText(host),
    ...clock,
    ...(host.sees_runs === null ? [] : [host.sees_runs ? "sees the runs" : "does not see the runs"]),
  ];
}

/** The version of this project on a host. Without a shared folder the code is copied with each run. */
function codeText({ code, sees_runs: seesRuns }) {
  if (code !== null) return [`code ${code}`];
  return seesRuns === null ? [] : ["this project is missing there"];
}

function clockText(offS) {
  return offS === 0
    ? "clock agrees"
    : `clock ${Math.abs(offS).toFixed(2)} s ${offS > 0 ? "ahead" : "behind"}`;
}
