// The result of the communication check: a summary, a chart and a table.

import { Chart, loadPlotly } from "../charts/chart.js";
import { el, setAttribute, setText, show } from "../shared/dom.js";
import { byteUnit, bytes, count, dateTime, shortTime, rate } from "../shared/format.js";
import { term } from "../shared/terms.js";
import { complain } from "../shared/toast.js";
import { line, onThemeChange } from "../shared/theme.js";

// DDP's default bucket size: gradients are collected into buckets of this size before an all-reduce.
const BUCKET_WORDS = "25 MB";

export class CheckResult {
  constructor() {
    this.lines = [];
    this.words = el("p", { class: "ddp-check-verdict", role: "status" });
    this.why = el("p", {});
    this.body = el("tbody", {});
    this.about = el("caption", {});
    const head = el(
      "tr",
      {},
      ["size", "time", term("algorithm bandwidth"), term("bus bandwidth")].map((title) =>
        el("th", { scope: "col" }, title),
      ),
    );
    this.table = el("table", { class: "ddp-table" }, this.about, el("thead", {}, head), this.body);
    this.chart = new Chart({
      name: "bandwidth",
      title: "Bandwidth by size of the tensor",
      empty: "Appears with the first size.",
      figure: () => this.figure(),
      onVisible: () => this.draw(),
    });
    const busNote =
      "The bus bandwidth is the algorithm bandwidth × 2(n−1)/n for n ranks: what each connection carries.";
    const tableBox = el(
      "div",
      { class: "ddp-check-table" },
      this.table,
      el("p", { class: "ddp-hint" }, busNote),
    );
    this.figures = el("div", { class: "ddp-check-pair", hidden: true }, this.chart.element, tableBox);
    this.element = el(
      "div",
      { class: "ddp-check-result", hidden: true },
      el("div", { class: "ddp-check-words" }, this.words, this.why),
      this.figures,
    );
    this.endTheme = onThemeChange(() => this.draw());
  }

  take(check) {
    this.say(stateWords(check), check.state);
    show(this.figures, check.lines.length > 0 || check.state === "running");
    setText(this.why, check.state === "done" ? fixedPrice(check) : "");
    setText(this.about, caption(check));
    if (check.lines.length === this.lines.length && check.check_id === this.checkId) return;
    this.lines = check.lines;
    this.checkId = check.check_id;
    this.body.replaceChildren(...check.lines.map(row));
    this.draw();
  }

  /** Shows the progress or the result; both use the same element. */
  say(words, state) {
    show(this.element, true);
    setText(this.words, words);
    setAttribute(this.words, "data-state", state);
  }

  async draw() {
    this.chart.isDirty = true;
    try {
      const plotly = await loadPlotly();
      if (this.chart.isDue) await this.chart.draw(plotly);
    } catch (error) {
      complain(`The chart could not be drawn: ${error.message}`);
    }
  }

  figure() {
    const most = Math.max(...this.lines.map((entry) => entry.bus_bytes_per_s), 1);
    const [unit, name] = byteUnit(most);
    const traces = [
      ["bus bandwidth", "bus_bytes_per_s"],
      ["algorithm bandwidth", "algorithm_bytes_per_s"],
    ].map(([label, field], index) => ({
      name: label,
      x: this.lines.map((entry) => entry.size_bytes),
      y: this.lines.map((entry) => entry[field] / unit),
      mode: "lines+markers",
      line: line(index),
      marker: { symbol: ["circle", "diamond"][index], size: 8 },
      hovertemplate: `%{y:.3g} ${name}/s<extra>${label}</extra>`,
    }));
    const sizes = this.lines.map((entry) => entry.size_bytes);
    return {
      data: this.lines[0]?.num_ranks > 2 ? traces : traces.slice(0, 1),
      layout: {
        showlegend: this.lines[0]?.num_ranks > 2,
        xaxis: {
          type: "log",
          title: { text: "size of the tensor" },
          tickvals: sizes.filter((_, index) => index % 2 === 0),
          ticktext: sizes.filter((_, index) => index % 2 === 0).map(bytes),
        },
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
  const words = [
    bytes(entry.size_bytes),
    shortTime(entry.time_s),
    rate(entry.algorithm_bytes_per_s),
    rate(entry.bus_bytes_per_s),
  ];
  const title = `median of ${count(entry.num_repetitions)}`;
  return el(
    "tr",
    { title },
    el("th", { scope: "row" }, words[0]),
    words.slice(1).map((text) => el("td", {}, text)),
  );
}

function caption(check) {
  const device = check.lines[0]?.device;
  const who = `${check.num_ranks} ranks over ${check.backend === "nccl" ? "NCCL" : "gloo"}${device ? ` on ${device}` : ""}`;
  const meanwhile = check.busy_with.length > 0 ? `, while ${check.busy_with.join(", ")} was running` : "";
  return `${who}, ${dateTime(check.started_unix_s)}${meanwhile}`;
}

function stateWords(check) {
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
