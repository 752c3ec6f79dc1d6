// The communication check: start, follow, stop; and its result as a summary, a chart and a table.

import { Chart } from "../charts/chart.js";
import {
  CommandLine,
  buttonRow,
  makeTable,
  optionsOf,
  paragraph,
  tableRow,
  textButton,
} from "../shared/widgets.js";
import { orShowError } from "../shared/dialog.js";
import { el, section, setAttribute, setText, show } from "../shared/dom.js";
import { byteUnit, bytes, count, dateTime, rate, shortTime } from "../shared/format.js";
import { callEndpoint, askEvery } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { line, onThemeChange } from "../shared/theme.js";

// DDP's default bucket size: gradients are collected into buckets of this size before an all-reduce.
const BUCKET_WORDS = "25 MB";

class CheckResult {
  constructor() {
    this.lines = [];
    this.text = el("p", { class: "ddp-check-verdict", role: "status" });
    this.why = el("p", {});
    this.body = el("tbody", {});
    this.description = el("span", {});
    const heads = ["size", "time", term("algorithm bandwidth"), term("bus bandwidth")];
    const table = makeTable("ddp-table", heads, this.body, this.description);
    this.chart = new Chart({
      name: "bandwidth",
      title: "Bandwidth by size of the tensor",
      empty: "Appears with the first size.",
      figure: () => this.figure(),
    });
    const busNote =
      "The bus bandwidth is the algorithm bandwidth × 2(n−1)/n for n ranks: what each connection carries.";
    const tableBox = el("div", { class: "ddp-check-table" }, table, paragraph("hint", busNote));
    this.figures = el("div", { class: "ddp-check-pair", hidden: true }, this.chart, tableBox);
    const text = el("div", { class: "ddp-check-words" }, this.text, this.why);
    this.element = el("div", { class: "ddp-check-result", hidden: true }, text, this.figures);
    this.endTheme = onThemeChange(() => this.draw());
  }

  take(check) {
    this.say(stateText(check), check.state);
    show(this.figures, check.lines.length > 0 || check.state === "running");
    setText(this.why, check.state === "done" ? fixedPrice(check) : "");
    setText(this.description, caption(check));
    if (check.lines.length === this.lines.length && check.check_id === this.checkId) return;
    this.lines = check.lines;
    this.checkId = check.check_id;
    this.body.replaceChildren(...check.lines.map(row));
    this.draw();
  }

  /** Shows the progress or the result; both use the same element. */
  say(text, state) {
    show(this.element, true);
    setText(this.text, text);
    setAttribute(this.text, "data-state", state);
  }

  draw() {
    this.chart.invalidate();
    this.chart.drawDue();
  }

  figure() {
    const most = Math.max(...this.lines.map((entry) => entry.bus_bytes_per_s), 1);
    const [unit, name] = byteUnit(most);
    const sizes = this.lines.map((entry) => entry.size_bytes);
    const trace = (label, field, index) => ({
      name: label,
      x: sizes,
      y: this.lines.map((entry) => entry[field] / unit),
      mode: "lines+markers",
      line: line(index),
      marker: { symbol: ["circle", "diamond"][index], size: 8 },
      hovertemplate: `%{y:.3g} ${name}/s<extra>${label}</extra>`,
    });
    const data = [trace("bus bandwidth", "bus_bytes_per_s", 0)];
    // Between two ranks both bandwidths are the same.
    if (this.lines[0]?.num_ranks > 2) data.push(trace("algorithm bandwidth", "algorithm_bytes_per_s", 1));
    const tickvals = sizes.filter((_, index) => index % 2 === 0);
    const ticks = { tickvals, ticktext: tickvals.map(bytes) };
    return {
      data,
      layout: {
        showlegend: data.length > 1,
        xaxis: { type: "log", title: { text: "size of the tensor" }, ...ticks },
        yaxis: { rangemode: "tozero", title: { text: `${name}/s` } },
      },
      revision: this.checkId,
    };
  }

  close() {
    this.endTheme();
    this.chart.close();
  }
}

function row(entry) {
  const rates = [rate(entry.algorithm_bytes_per_s), rate(entry.bus_bytes_per_s)];
  const title = `median of ${count(entry.num_repetitions)}`;
  return tableRow(bytes(entry.size_bytes), [shortTime(entry.time_s), ...rates], title);
}

function caption(check) {
  const device = check.lines[0]?.device;
  const who = `${check.num_ranks} ranks over ${check.backend === "nccl" ? "NCCL" : "gloo"}${device ? ` on ${device}` : ""}`;
  const meanwhile = check.busy_with.length > 0 ? `, while ${check.busy_with.join(", ")} was running` : "";
  return `${who}, ${dateTime(check.started_unix_s)}${meanwhile}`;
}

function stateText(check) {
  const newest = check.lines.at(-1);
  if (check.state === "done") return verdict(check);
  if (check.state === "failed") return check.error;
  if (check.state === "stopped") return "Stopped. No process is left.";
  return newest
    ? `Measuring: ${count(check.lines.length)} sizes so far, up to ${bytes(newest.size_bytes)}.`
    : `Starting ${check.num_ranks} ranks: this takes a few seconds.`;
}

/** Explains the result with the gradients of an example model. */
function verdict({ example, num_ranks: ranks }) {
  const millions = count(example.num_parameters / 1e6);
  return `The gradients of a model with ${millions} million parameters (${bytes(example.size_bytes)}) take about ${shortTime(example.time_s)} to average between these ${ranks} ranks.`;
}

function fixedPrice({ lines }) {
  const quickest = Math.min(...lines.map((entry) => entry.time_s));
  return (
    `No message takes less than ${shortTime(quickest)}, however small: each message has a fixed cost. So DDP sends gradients in ` +
    `buckets of ${BUCKET_WORDS}, and while the rest is still being computed: part of this time is hidden.`
  );
}

const FOLLOW_EVERY_MS = 400;

/** A check that runs as a separate job: starts it, follows it until it ends, and stops it. */
export class JobCheck {
  /**
   * @param {string} begin the label of the button that starts it
   * @param {string} stop the label of the button that stops it
   * @param {{ begin: string, read: string, stop: string }} endpoints
   */
  constructor(begin, stop, endpoints) {
    this.endpoints = endpoints;
    /** @type {any} The check that is shown; null before the first. */
    this.check = null;
    this.endFollowing = () => {};
    this.hasLeft = false;
    this.start = textButton(begin, () => this.begin(), "main");
    this.stop = textButton(stop, () => this.end(), "stop", { disabled: true });
  }

  /** The values that it is started with. @returns {any[]} */
  values() {
    return [];
  }

  /** Shows a check, which may be running. @param {any} _check */
  show(_check) {}

  /** Shows that the server did not answer. @param {Error} _error */
  heard(_error) {}

  async begin() {
    const check = await this.call(this.start, this.endpoints.begin, ...this.values());
    if (check) this.follow(check.check_id);
  }

  end() {
    return this.call(this.stop, this.endpoints.stop, this.check.check_id);
  }

  /** Calls an endpoint for a button and shows the check that it returns. */
  async call(button, endpoint, ...values) {
    button.disabled = true;
    const check = await orShowError(callEndpoint(endpoint, ...values));
    if (check) this.take(check);
    else this.setButtons();
    return check;
  }

  /** Polls a check until it has ended. */
  follow(checkId) {
    this.endFollowing();
    if (this.hasLeft) return;
    let hasEnded = false;
    const ask = async () => {
      const check = await callEndpoint(this.endpoints.read, checkId);
      if (!hasEnded) this.take(check);
    };
    const end = askEvery(FOLLOW_EVERY_MS, ask, (error) => {
      if (error) this.heard(error);
      else if (!this.isRunning) this.endFollowing();
    });
    this.endFollowing = () => {
      hasEnded = true;
      end();
    };
  }

  take(check) {
    // Ignore an outdated answer that arrives after the final one.
    if (this.check?.check_id === check.check_id && !this.isRunning) return;
    this.check = check;
    this.show(check);
    this.setButtons();
  }

  get isRunning() {
    return this.check?.state === "running";
  }

  setButtons() {
    const { isRunning } = this;
    this.start.disabled = isRunning;
    setAttribute(this.start, "aria-busy", isRunning);
    if (isRunning) this.start.dataset.busy = "true";
    else delete this.start.dataset.busy;
    this.stop.disabled = !isRunning;
  }

  /** Ends the polling, because the page is left. */
  leave() {
    this.hasLeft = true;
    this.endFollowing();
  }
}

export class CommunicationCheck extends JobCheck {
  constructor({ backend, command, newest_check_id: newest, ...limits }) {
    super("Measure", "Stop", {
      begin: "check_communication",
      read: "communication_check",
      stop: "stop_communication_check",
    });
    this.command = command;
    const { fewest_ranks: fewest, most_ranks: most, default_ranks: usual } = limits;
    const kind = backend === "nccl" ? "GPUs" : "CPU ranks";
    const numbers = Array.from({ length: most - fewest + 1 }, (_, index) => fewest + index);
    const pairs = numbers.map((number) => [number, `${number} ${kind}`]);
    const attributes = { "aria-label": "Between how many ranks", onchange: () => this.showCommand() };
    this.select = el("select", attributes, optionsOf(pairs, usual));
    this.busy = paragraph("hint ddp-check-busy");
    this.commandLine = new CommandLine("", "the command of the check");
    this.result = new CheckResult();
    this.element = this.layOut(backend === "nccl" ? "NCCL" : "gloo");
    this.showCommand();
    if (newest) this.follow(newest);
  }

  layOut(backend) {
    const why = [
      "In every step of training the ",
      term("rank", "ranks"),
      " average their ",
      term("gradient", "gradients"),
      ": an ",
      term("all-reduce"),
      ". This runs real all-reduces, with tensors of 1 kB to 66 MB over ",
      term(backend),
      ", checks that the sums are right, and shows the bandwidth.",
    ];
    const between = el("label", { class: "ddp-from" }, el("span", {}, "between"), this.select);
    const buttons = buttonRow(between, this.start, this.stop, this.busy);
    const inside = [paragraph("caption", why), buttons, this.result, this.commandLine];
    return section("How fast the ranks communicate", "check", inside);
  }

  /** Names the runs that use the same devices as the check. */
  update({ runs }) {
    const names = runs.map((run) => run.run_id).join(", ");
    const subject = runs.length === 1 ? `Run ${names} uses` : `Runs ${names} use`;
    const text = `${subject} the same devices: results will be lower than on an idle machine.`;
    setText(this.busy, runs.length === 0 ? "" : text);
  }

  showCommand() {
    const option = "--nproc-per-node";
    this.commandLine.update(this.command.replace(`${option} N`, `${option} ${this.select.value}`));
  }

  /** @override */
  values() {
    return [Number(this.select.value)];
  }

  /** @override */
  show(check) {
    this.result.take(check);
  }

  /** @override */
  heard(error) {
    this.result.say(`${error.message} Trying again …`, "failed");
  }

  /** @override */
  leave() {
    super.leave();
    this.result.close();
  }
}
