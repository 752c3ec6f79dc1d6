// The live view of a run inside a notebook: an anywidget, packed into one module with all that it imports
// (ddp_gui/notebook/live.py). The kernel sends the picture; buttons send messages to the kernel.

import { LossChart } from "./loss_chart.js";
import { Traces } from "../charts/traces.js";
import { DevicesPanel } from "../run/devices.js";
import { RanksPanel } from "../run/ranks.js";
import { el, makeButton, setText, show } from "../shared/dom.js";
import { count, duration, LIVE_STATES, loss } from "../shared/format.js";
import { StatePill } from "../shared/state_pill.js";

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
  const timer = setInterval(() => view.look(host), LOOK_EVERY_MS);
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
    this.values = el("p", { class: "ddp-notebook-values" });
    this.words = el("p", { class: "ddp-notebook-words", role: "status" });
    this.silence = el("p", { class: "ddp-notebook-silence", role: "alert", hidden: true });
    this.chart = new LossChart();
    this.devices = new DevicesPanel();
    this.ranks = new RanksPanel(this.facts);
    this.buttons = [
      this.button(model, "stop", "Stop", "Saves a checkpoint, then ends the run", "ddp-button-stop"),
      this.button(model, "checkpoint", "Checkpoint", "Saves a checkpoint; training continues", ""),
    ];
    const { config, model_label: network, dataset_label: dataset } = this.facts;
    this.element = el(
      "div",
      { class: "ddp ddp-notebook" },
      el(
        "header",
        {},
        el("strong", {}, config.name || this.facts.run_id),
        this.pill.element,
        el("span", { class: "ddp-notebook-what" }, `${network} on ${dataset}`),
        el("div", { class: "ddp-buttons" }, ...this.buttons),
      ),
      this.silence,
      this.values,
      this.words,
      this.chart.element,
      el("div", { class: "ddp-notebook-parts" }, this.devices.element, this.ranks.element),
    );
    /** @type {{ label: string, atMs: number } | null} A request that the kernel has not answered. */
    this.asked = null;
    this.answered = 0;
    this.newsAt = Date.now();
  }

  button(model, name, label, title, kind) {
    const ask = () => {
      this.asked = { label, atMs: Date.now() };
      model.send({ do: name });
      this.enable();
    };
    const classes = `ddp-button ddp-button-small ${kind}`;
    return makeButton({ class: classes, title, onclick: ask }, label);
  }

  /** Shows a picture from the kernel. */
  update(shown, host) {
    const { head, note, gone } = shown;
    this.newsAt = Date.now();
    this.isLive = LIVE_STATES.has(head.state) && !gone;
    this.head = head;
    if (note && note.number > this.answered) {
      this.answered = note.number;
      this.asked = null;
      this.note = note.text;
    }
    this.traces.apply({ type: "snapshot", traces: shown.traces });
    this.pill.update(head.state, head.step > 0 && head.loss === null, head.detail);
    this.chart.update(this.traces);
    this.devices.update(this.traces, shown.devices, shown.nodes, true, head);
    this.ranks.update(shown);
    this.explainTerms();
    this.say(gone);
    this.look(host);
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
    const words = gone ?? error ?? (this.isLive ? this.note : this.head.reason);
    setText(this.words, words);
    show(this.words, Boolean(words));
  }

  /** Called every second: the colours of the notebook, and whether the kernel answers. */
  look(host) {
    host.classList.toggle("dark", isDark(host));
    const silentMs = Date.now() - this.newsAt;
    this.isSilent = this.isLive && silentMs > SILENT_AFTER_MS;
    const unanswered = Date.now() - (this.asked?.atMs ?? Infinity) > UNANSWERED_AFTER_MS ? this.asked : null;
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
        !this.isLive || this.isSilent || this.asked !== null || this.head.state === "stopping";
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
