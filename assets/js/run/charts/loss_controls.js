// Controls of the loss chart: steps or time, linear or logarithmic, smoothing. Stored in this browser.

import { select } from "../../charts/controls.js";
import { smoothingOf, SMOOTHINGS } from "../../charts/style.js";
import { el } from "../../shared/dom.js";
import { metricNames } from "./figures.js";
import { metricLabel } from "../../shared/format.js";
import { prefer, preference } from "../../shared/prefs.js";

const DEFAULTS = { axis: "step", isLogarithmic: false, smoothing: 10 };

export class LossControls {
  /** `onChange(look, isNewData)`: `isNewData` if other points must be fetched (another axis or smoothing). */
  constructor(onChange) {
    this.look = { ...DEFAULTS, ...preference("look", {}) };
    const change = (values, isNewData) => {
      this.look = { ...this.look, ...values };
      prefer("look", this.look);
      onChange(this.look, isNewData);
    };
    /** @returns {[string, string][]} */
    const smoothings = () => SMOOTHINGS.map((smoothing) => [String(smoothing), smoothing ? `smoothed over ${smoothingOf({ ...this.look, smoothing }).words}` : "not smoothed"]);
    const smoothing = select("Smoothing", smoothings(), String(this.look.smoothing), (steps) => change({ smoothing: Number(steps) }, true));
    this.element = el(
      "div",
      { class: "ddp-chart-controls" },
      select("Drawn over", [["step", "over steps"], ["time", "over time"]], this.look.axis, (axis) => {
        change({ axis }, true);
        smoothings().forEach(([, words], index) => (smoothing.options[index].textContent = words));
      }),
      select("Scale", [["linear", "linear"], ["log", "logarithmic"]], this.look.isLogarithmic ? "log" : "linear",
        (scale) => change({ isLogarithmic: scale === "log" }, false)),
      smoothing,
    );
  } // prettier-ignore
}

export class MetricControls {
  constructor(onChange) {
    this.chosen = null;
    this.names = [];
    this.element = el("div", { class: "ddp-chart-controls", hidden: true });
    this.onChange = onChange;
  }

  /** Updates the list of metrics; hidden if there is only one. */
  offer(traces) {
    const names = metricNames(traces);
    if (names.join() === this.names.join()) return;
    this.names = names;
    this.element.hidden = names.length < 2;
    const options = names.map((name) => [name, metricLabel(name)]);
    this.element.replaceChildren(
      select("Metric", options, names.includes(this.chosen) ? this.chosen : names[0], (name) => {
        this.chosen = name;
        this.onChange();
      }),
    );
  }
}
