// The verdict on whether the run learns, and further insights, each with its evidence and possibly an action.
// Both places exist from the start, so that the layout does not shift.

import { el, icon, setText, show } from "../shared/dom.js";
import { LIVE_STATES } from "../shared/format.js";
import { act } from "../shared/toast.js";
import { againAddress } from "../shared/net.js";

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
const FAILED = { code: "too_short", title: "Not judged.", reason: "The run did not finish." };

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
    this.none = el("p", { class: "ddp-hint" }, "Nothing else stands out.");
    this.element = el(
      "section",
      { class: "ddp-card ddp-insights", "aria-label": "What stands out" },
      this.verdict.element,
      el("div", { class: "ddp-insight-place", "aria-live": "polite" }, this.none, this.first, this.fold),
    );
  }

  update(insights, head) {
    this.verdict.update(head.verdict ?? (LIVE_STATES.has(head.state) ? WAITING : FAILED));
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
    const message = el("strong", {});
    const evidence = el("small", {});
    const element = el(
      "li",
      { "data-code": insight.code },
      icon("bulb"),
      el("p", {}, message, evidence),
      this.button(insight.action),
    );
    return { element, message, evidence };
  }

  button(action) {
    if (!action) return null;
    if (action.kind === "again") {
      return el(
        "a",
        { class: "ddp-button ddp-button-small", href: againAddress(this.runId, action.values) },
        action.label,
      );
    }
    if (!this.mayChange) return null;
    const button = el("button", { type: "button", class: "ddp-button ddp-button-small" }, action.label);
    button.addEventListener("click", async () => {
      await act(button, "set_learning_rate", this.runId, action.values.learning_rate);
      this.afterAction();
    });
    return button;
  }
}

/** The verdict on whether the run learns, and its reason. */
class VerdictLine {
  constructor() {
    this.sign = el("span", { class: "ddp-verdict-sign" });
    this.title = el("strong", {});
    this.reason = el("small", {});
    this.element = el(
      "div",
      { class: "ddp-judgement", role: "status" },
      this.sign,
      el("p", {}, this.title, this.reason),
    );
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
