// What a good tutor would say now, each with the events it was read from and, where there is one, a click.

import { el, icon, setText, show } from "../shared/dom.js";
import { act } from "../shared/toast.js";
import { againAddress } from "../shared/net.js";

export class InsightStrip {
  constructor(runId, mayChange, afterAction) {
    this.runId = runId;
    this.mayChange = mayChange;
    this.afterAction = afterAction;
    this.shown = "[]";
    this.list = el("ul", {});
    this.element = el(
      "section",
      { class: "ddp-insights", "aria-label": "What stands out", "aria-live": "polite", hidden: true },
      this.list,
    );
  }

  update(insights) {
    if (!insights) return;
    // A message whose numbers change keeps its place and its button.
    const codes = JSON.stringify(insights.map((insight) => [insight.code, insight.action]));
    if (codes !== this.shown) {
      this.shown = codes;
      this.items = insights.map((insight) => this.item(insight));
      this.list.replaceChildren(...this.items.map((item) => item.element));
    }
    insights.forEach((insight, index) => {
      setText(this.items[index].message, insight.message);
      setText(this.items[index].evidence, `Seen in ${insight.evidence}.`);
    });
    show(this.element, insights.length > 0);
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
