// Cards about a run: whether it learns, what it was configured to do, and the memory of a rank.

import { actionButton } from "../shared/dialog.js";
import { el, icon, section, setAttribute, setText, show } from "../shared/dom.js";
import { LIVE_STATES, bytes } from "../shared/format.js";
import { rerunAddress, fetchJson, runAddress, scriptAddress, runPage } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { buttonLink, collapsed, legendEntry, makeTable, paragraph } from "../shared/widgets.js";

// The verdict on whether the run learns, and further insights, each with its evidence and possibly an action.
// Both places exist from the start, so that the layout does not shift.

const ICONS = {
  learning: "check",
  learnt: "check",
  still_improving: "check",
  memorised: "bulb",
  did_not_learn: "cross",
};
const WAITING = {
  code: "too_early",
  title: "Is it learning?",
  reason: "Appears after the first steps.",
};

/** What is shown in place of the verdict on a run that has none: it has no step yet, or failed. */
export function withoutVerdict(state) {
  if (LIVE_STATES.has(state)) return WAITING;
  const reason = state === "finished" ? "It made no optimizer step." : "The run did not finish.";
  return { code: "too_short", title: "Not judged.", reason };
}

export class InsightStrip {
  constructor(runId, mayChange, afterAction) {
    this.runId = runId;
    this.mayChange = mayChange;
    this.afterAction = afterAction;
    this.shown = "";
    this.verdict = new VerdictLine();
    this.first = el("ul", { class: "ddp-insight-first" });
    this.others = el("ul", {});
    this.more = el("summary", {});
    this.fold = el("details", { hidden: true }, this.more, this.others);
    this.none = paragraph("hint", "Nothing else stands out.");
    this.element = el(
      "section",
      { class: "ddp-card ddp-insights", "aria-label": "What stands out" },
      this.verdict,
      el("div", { class: "ddp-insight-place", "aria-live": "polite" }, this.none, this.first, this.fold),
    );
  }

  update({ insights, head }) {
    this.verdict.update(head.verdict ?? withoutVerdict(head.state));
    if (!insights) return;
    // Keep the elements of a message whose numbers change, so that its button keeps the focus.
    const codes = JSON.stringify(insights.map((insight) => [insight.code, insight.action]));
    if (codes !== this.shown) {
      this.shown = codes;
      this.items = insights.map((insight) => this.item(insight));
      const [first, ...others] = this.items.map((item) => item.element);
      this.first.replaceChildren(...(first ? [first] : []));
      this.others.replaceChildren(...others);
      setText(this.more, `and ${others.length} more`);
      show(this.fold, others.length > 0);
      show(this.none, !first);
    }
    insights.forEach((insight, index) => {
      setText(this.items[index].message, insight.message);
      setText(this.items[index].evidence, `Seen in ${insight.evidence}.`);
    });
  }

  item(insight) {
    const [message, evidence] = [el("strong", {}), el("small", {})];
    const paragraphs = el("p", {}, message, evidence);
    const mark = { "data-code": insight.code };
    return {
      element: el("li", mark, icon("bulb"), paragraphs, this.button(insight.action)),
      message,
      evidence,
    };
  }

  button(action) {
    if (!action) return null;
    if (action.kind === "again") {
      return buttonLink(action.label, { href: rerunAddress(this.runId, action.values) }, "small");
    }
    if (!this.mayChange) return null;
    const call = () => ["set_learning_rate", this.runId, action.values.learning_rate];
    return actionButton(action.label, "small", call, this.afterAction);
  }
}

/** The verdict on whether the run learns, and its reason. */
class VerdictLine {
  constructor() {
    this.sign = el("span", { class: "ddp-verdict-sign" });
    this.title = el("strong", {});
    this.reason = el("small", {});
    const paragraphs = el("p", {}, this.title, this.reason);
    this.element = el("div", { class: "ddp-judgement", role: "status" }, this.sign, paragraphs);
  }

  update({ code, title, reason }) {
    if (this.element.dataset.code !== code) {
      this.element.dataset.code = code;
      this.sign.replaceChildren(icon(ICONS[code] ?? "wait"));
    }
    setText(this.title, title);
    setText(this.reason, reason);
  }
}

// The configuration of a run: changed settings, differences from the previous run, and all settings.

export class ConfigurationPanel {
  constructor(runId, isScript) {
    this.note = paragraph("empty", "Reading …");
    this.chosen = el("dl", { class: "ddp-settings" });
    this.before = el("div", {});
    this.all = el("dl", { class: "ddp-settings" });
    const href = isScript ? scriptAddress(runId) : rerunAddress(runId);
    this.element = section(
      "Configuration",
      "configuration",
      this.note,
      this.chosen,
      this.before,
      collapsed(null, "All settings", this.all),
      el("p", {}, buttonLink("Run again with changes", { href }, "small")),
    );
    fetchJson(runAddress(runId, "configuration")).then(
      (found) => this.fill(found),
      (error) => setText(this.note, error.message),
    );
  }

  fill({ fields, before }) {
    const chosen = fields.filter((field) => !field.is_default && field.field !== "name");
    setText(this.note, "All settings have their default values.");
    show(this.note, chosen.length === 0);
    this.chosen.replaceChildren(...chosen.map(entry));
    this.all.replaceChildren(...fields.map(entry));
    if (before) this.before.replaceChildren(...changesFrom(before));
  }
}

function entry({ field, label, help, value }) {
  return el("div", { title: help }, el("dt", {}, label, el("code", {}, field)), el("dd", {}, text(value)));
}

function changesFrom({ run_id: runId, changes, is_other_code: isOtherCode }) {
  const link = el("a", { href: runPage(runId) }, runId);
  if (changes.length === 0) {
    return [
      paragraph(
        "caption",
        "The same settings as the run before, ",
        link,
        isOtherCode ? ", with other code." : ".",
      ),
    ];
  }
  const rows = changes.map(({ label, before, now }) =>
    el("tr", {}, el("td", {}, label), el("td", {}, text(before)), el("td", {}, el("strong", {}, text(now)))),
  ); // prettier-ignore
  return [
    el("h3", {}, "Changed since the run before, ", link),
    makeTable("ddp-table", ["setting", "then", "now"], rows),
    ...(isOtherCode ? [paragraph("caption", "The code is another one, too.")] : []),
  ];
}

function text(value) {
  if (value === null || value === "") return "–";
  if (typeof value === "boolean") return value ? "on" : "off";
  return String(value);
}

// The memory of a rank: predicted before the start and measured.

/** The parts of the prediction, linked to the glossary. */
const TERMS = {
  parameters: () => term("parameters"),
  gradients: () => term("gradient", "gradients"),
  optimizer: () => term("optimizer state"),
  activations: () => term("activations"),
};

export class MemoryPanel {
  constructor({ memory }) {
    this.predicted = memory;
    this.measured = el("div", { class: "ddp-memory-part ddp-memory-measured" });
    this.predictedBar = el("div", { class: "ddp-memory-bar", role: "img" });
    this.measuredBar = el("div", { class: "ddp-memory-bar", role: "img" }, this.measured);
    this.text = paragraph("hint", "\u00a0");
    const legend = Object.keys(TERMS).map((name) =>
      legendEntry(`ddp-memory-${name}`, TERMS[name](), memory ? ` ${bytes(memory[`${name}_bytes`])}` : null),
    );
    this.element = section(
      "Memory of a rank",
      "memory",
      el("p", { class: "ddp-legend" }, legend),
      el("p", { class: "ddp-memory-title" }, "predicted"),
      this.predictedBar,
      el("p", { class: "ddp-memory-title" }, "measured, peak so far"),
      this.measuredBar,
      this.text,
    );
    show(this.element, Boolean(memory));
    if (memory) this.draw(null);
  }

  /** With several nodes, `ranks` may be incomplete, but `nodes` has the maximum of each node. */
  update({ ranks, deviceKind, nodes }) {
    if (!this.predicted || !ranks) return;
    const all = nodes ? nodes.map(({ grown_bytes: most }) => most) : ranks.map((rank) => growth(rank));
    const grown = all.filter((value) => value !== null);
    const most = Math.max(0, ...grown);
    const predicted = `Predicted ${bytes(this.draw(most))}`;
    if (grown.length === 0) {
      const unknown = "This run did not report what its ranks held before the model was built.";
      setText(this.text, `${predicted}. ${unknown}`);
      return;
    }
    const others =
      deviceKind === "cuda" ? " and kernel workspaces" : ", kernel workspaces, data and cached memory";
    setText(
      this.text,
      `${predicted}, measured ${bytes(most)} beyond what the process held before the model was built. The prediction is a lower bound: gradients of activations${others} are not included.`,
    );
  }

  /** Draws both bars; `most` is null before the first measurement. Returns the predicted total in bytes. */
  draw(most) {
    const sizes = Object.keys(TERMS).map((name) => [name, this.predicted[`${name}_bytes`] ?? 0]);
    const total = sizes.reduce((sum, [, size]) => sum + size, 0);
    const scale = Math.max(most ?? 0, total);
    const parts = sizes.map(([name, size]) => {
      const part = el("div", { class: `ddp-memory-part ddp-memory-${name}` });
      part.style.width = `${(100 * size) / scale}%`;
      return part;
    });
    this.predictedBar.replaceChildren(...parts);
    this.measured.style.width = `${(100 * (most ?? 0)) / scale}%`;
    setAttribute(this.predictedBar, "aria-label", `predicted ${bytes(total)}`);
    const measured = most === null ? "not measured yet" : `measured ${bytes(most)}`;
    setAttribute(this.measuredBar, "aria-label", measured);
    return total;
  }
}

/** The bytes that a rank allocated since its start; null if not measured. */
export function growth(rank) {
  const { peak_memory_bytes: peak, base_memory_bytes: base } = rank;
  return typeof peak === "number" && typeof base === "number" ? Math.max(0, peak - base) : null;
}
