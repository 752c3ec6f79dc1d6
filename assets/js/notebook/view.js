// The live view of a run inside a notebook: an anywidget, packed into one module with all that it imports
// (ddp_gui/notebook/live.py). The kernel sends the picture; buttons send messages to the kernel.

import { valueAt, Traces } from "../charts/traces.js";
import { ticks, tickText, pathOf } from "../charts/plot.js";
import { el, setAttribute, setText, svg, show, showText } from "../shared/dom.js";
import { count, loss, duration, LIVE_STATES } from "../shared/format.js";
import { DevicesPanel } from "../run/devices.js";
import { RanksPanel } from "../run/ranks.js";
import { StatePill, buttonRow, paragraph, textButton } from "../shared/widgets.js";

// The loss of a run over its steps, as one SVG picture without a library.

const HEIGHT = 220;
const MARGIN = { left: 52, right: 12, top: 10, bottom: 24 };
const NARROWEST = 200;
/** The curves: the name of the trace and its words in the legend. */
const CURVES = [
  ["loss", "training loss"],
  ["loss_smooth", "smoothed"],
  ["validation_loss", "validation"],
];

class LossChart {
  constructor() {
    /** @type {any} The scale of the drawn curves; null without any. */
    this.scale = null;
    this.grid = svg("g", { class: "ddp-notebook-grid" });
    this.paths = new Map(CURVES.map(([name]) => [name, svg("path", { class: `ddp-notebook-${name}` })]));
    this.cursor = svg("path", { class: "ddp-notebook-cursor" });
    const parts = [this.grid, ...this.paths.values(), this.cursor];
    this.picture = svg("svg", { role: "img", height: HEIGHT }, ...parts);
    this.reading = paragraph("notebook-reading", "\u00a0");
    const legend = CURVES.map(([name, text]) =>
      el("span", {}, el("i", { class: `ddp-notebook-${name}`, "aria-hidden": "true" }), text),
    );
    const caption = el("figcaption", {}, legend, this.reading);
    this.element = el("figure", { class: "ddp-notebook-chart" }, caption, this.picture);
    this.picture.addEventListener("pointermove", (event) => this.read(event));
    this.picture.addEventListener("pointerleave", () => this.readNothing());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  update(traces) {
    this.traces = traces;
    this.draw();
  }

  draw() {
    const shown = CURVES.map(([name]) => [name, this.traces?.get(name) ?? { x: [], y: [] }]);
    const xs = shown.flatMap(([, { x }]) => x);
    const ys = shown.flatMap(([, { y }]) => y).filter((value) => value !== null);
    this.scale = null;
    this.grid.replaceChildren();
    if (ys.length === 0) {
      this.grid.append(svg("text", { x: MARGIN.left, y: HEIGHT / 2 }, "Appears with the first steps."));
      return;
    }
    const width = Math.max(NARROWEST, this.element.clientWidth);
    setAttribute(this.picture, "width", width);
    const [last, low, high] = [Math.max(...xs, 1), Math.min(...ys), Math.max(...ys)];
    const span = high - low || Math.abs(high) || 1;
    const [inside, below] = [width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.bottom];
    const across = (step) => MARGIN.left + (step / last) * inside;
    const up = (value) => below - ((value - low) / span) * (below - MARGIN.top);
    this.scale = { across, last, inside };
    this.drawGrid({ across, up, last, low, high: low + span, width });
    for (const [name, { x, y }] of shown) {
      const points = y.map((value, index) => [across(x[index]), value === null ? null : up(value)]);
      setAttribute(this.paths.get(name), "d", pathOf(points) || null);
    }
    const text = `Training loss from ${loss(ys[0])} to ${loss(this.traces.get("loss").y.at(-1))}`;
    setAttribute(this.picture, "aria-label", `${text} over ${count(last)} steps`);
  }

  drawGrid({ across, up, last, low, high, width }) {
    for (const { place, step } of ticks(low, high, 4)) {
      const y = up(place);
      this.grid.append(
        svg("path", { d: `M${MARGIN.left},${y}H${width - MARGIN.right}` }),
        svg("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, tickText(place, step)),
      );
    }
    for (const { place, step } of ticks(0, last, Math.max(2, width / 150))) {
      const [x, y] = [across(place), HEIGHT - 6];
      const anchor = place === 0 ? "start" : "middle";
      if (x < width - 70) {
        this.grid.append(svg("text", { x, y, "text-anchor": anchor }, tickText(place, step)));
      }
    }
    this.grid.append(svg("text", { x: width - MARGIN.right, y: HEIGHT - 6, "text-anchor": "end" }, "step"));
  }

  /** Shows the values at the pointer. */
  read(event) {
    if (this.scale === null) return;
    const { across, last, inside } = this.scale;
    const x = event.clientX - this.picture.getBoundingClientRect().left;
    const step = Math.round(Math.min(Math.max(((x - MARGIN.left) / inside) * last, 0), last));
    /** @type {[string, number | null][]} */
    const values = CURVES.map(([name, text]) => [text, valueAt(this.traces.get(name), step)]);
    const known = values
      .filter(([, value]) => value !== null)
      .map(([text, value]) => `${text} ${loss(value)}`);
    setText(this.reading, `step ${count(step)}: ${known.join(", ")}`);
    setAttribute(this.cursor, "d", `M${across(step).toFixed(1)},${MARGIN.top}V${HEIGHT - MARGIN.bottom}`);
  }

  readNothing() {
    setText(this.reading, "\u00a0");
    setAttribute(this.cursor, "d", null);
  }
}

const LOOK_EVERY_MS = 1000;
// The kernel sends something every 3 s while the run is live (NEWS_EVERY_S).
const SILENT_AFTER_MS = 12_000;
const UNANSWERED_AFTER_MS = 3000;

/** Called by anywidget for each place where the run is shown. */
export function render({ model, el: place }) {
  const view = new View(model);
  const host = el("div", {});
  host.attachShadow({ mode: "open" }).append(el("style", {}, model.get("styles")), view.element);
  place.append(host);
  const follow = () => view.update(model.get("shown"), host);
  model.on("change:shown", follow);
  follow();
  const timer = setInterval(() => view.refresh(host), LOOK_EVERY_MS);
  return () => {
    clearInterval(timer);
    model.off("change:shown", follow);
  };
}

class View {
  constructor(model) {
    this.facts = model.get("facts");
    this.definitions = this.facts.definitions;
    this.traces = new Traces();
    this.pill = new StatePill();
    this.values = paragraph("notebook-values");
    this.text = el("p", { class: "ddp-notebook-words", role: "status" });
    this.silence = el("p", { class: "ddp-notebook-silence", role: "alert", hidden: true });
    this.chart = new LossChart();
    this.devices = new DevicesPanel();
    this.ranks = new RanksPanel(this.facts);
    this.buttons = [
      this.button(model, "stop", "Stop", "Saves a checkpoint, then ends the run", "small stop"),
      this.button(model, "checkpoint", "Checkpoint", "Saves a checkpoint; training continues", "small"),
    ];
    const { config, model_label: network, dataset_label: dataset } = this.facts;
    const name = el("strong", {}, config.name || this.facts.run_id);
    const what = el("span", { class: "ddp-notebook-what" }, `${network} on ${dataset}`);
    this.element = el(
      "div",
      { class: "ddp ddp-notebook" },
      el("header", {}, name, this.pill, what, buttonRow(this.buttons)),
      this.silence,
      this.values,
      this.text,
      this.chart,
      el("div", { class: "ddp-notebook-parts" }, this.devices, this.ranks),
    );
    /** @type {{ label: string, atMs: number } | null} A request that the kernel has not answered. */
    this.request = null;
    this.answered = 0;
    this.newsAt = Date.now();
  }

  button(model, name, label, title, variant) {
    const ask = () => {
      this.request = { label, atMs: Date.now() };
      model.send({ do: name });
      this.enable();
    };
    return textButton(label, ask, variant, { title });
  }

  /** Shows a picture from the kernel. */
  update(shown, host) {
    const { head, note, gone } = shown;
    this.newsAt = Date.now();
    this.isLive = LIVE_STATES.has(head.state) && !gone;
    this.head = head;
    if (note && note.number > this.answered) {
      this.answered = note.number;
      this.request = null;
      this.note = note.text;
    }
    this.traces.apply({ type: "snapshot", traces: shown.traces });
    this.pill.update(head.state, head.step > 0 && head.loss === null, head.detail);
    this.chart.update(this.traces);
    this.devices.update({ ...shown, traces: this.traces, isSnapshot: true });
    this.ranks.update(shown);
    this.explainTerms();
    this.say(gone);
    this.refresh(host);
  }

  say(gone) {
    const { step, num_steps: steps, epoch, num_epochs: epochs, loss: value, eta_s: left, error } = this.head;
    const of = (all) => (all === null ? "" : ` of ${count(all)}`);
    const parts = [
      `step ${count(step)}${of(steps)}`,
      `epoch ${count(epoch)}${of(epochs)}`,
      `loss ${loss(value)}`,
    ];
    if (left !== null) parts.push(`about ${duration(left)} left`);
    setText(this.values, parts.join(" · "));
    showText(this.text, gone ?? error ?? (this.isLive ? this.note : this.head.reason));
  }

  /** Called every second: the colours of the notebook, and whether the kernel answers. */
  refresh(host) {
    host.classList.toggle("dark", isDark(host));
    const silentMs = Date.now() - this.newsAt;
    this.isSilent = this.isLive && silentMs > SILENT_AFTER_MS;
    const unanswered =
      Date.now() - (this.request?.atMs ?? Infinity) > UNANSWERED_AFTER_MS ? this.request : null;
    show(this.silence, this.isSilent || (this.isLive && unanswered !== null));
    if (this.isSilent) {
      const again = `from ddp_gui.notebook import open_run; open_run("${this.facts.run_id}")`;
      const since = `No news from the kernel for ${duration(silentMs / 1000)}`;
      setText(
        this.silence,
        `${since}: it was restarted, or is not connected. The run continues without it. Show it again with: ${again}`,
      );
    } else if (unanswered !== null) {
      const busy = `The kernel is busy with a cell: ${unanswered.label} takes effect when the cell ends.`;
      setText(this.silence, `${busy} Interrupting the cell does not end the run.`);
    }
    this.enable();
  }

  enable() {
    for (const button of this.buttons) {
      button.disabled =
        !this.isLive || this.isSilent || this.request !== null || this.head.state === "stopping";
    }
  }

  /** Replaces the page's buttons of terms, whose tooltips are not here, by text with a title. */
  explainTerms() {
    for (const button of this.element.querySelectorAll("button[data-term]")) {
      button.replaceWith(el("span", { title: this.definitions[button.dataset.term] }, button.textContent));
    }
  }
}

/** True if the element lies on a dark ground: notebooks have no common sign of a dark theme. */
function isDark(element) {
  for (let at = element.parentElement; at; at = at.parentElement) {
    const [red, green, blue, alpha = 1] = (
      getComputedStyle(at).backgroundColor.match(/[\d.]+/g) ?? [0, 0, 0, 0]
    ).map(Number);
    if (alpha > 0) return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}
