// The script of a lab report and of a lesson in a file: draws the charts with the Plotly that the file holds. It
// is embedded with the modules it imports (`ddp_gui/learn/report/document.py`).

import { Chart, loadPlotly } from "../../charts/chart.js";
import { BarsPicture, WaterfallPicture } from "../bars.js";
import { curveFigure, guessLine, marked, placesOn } from "../../runs/compare_figure.js";
import { beginPrinting } from "../../shared/browser.js";
import { setAttribute } from "../../shared/dom.js";
import { pause } from "../../shared/net.js";
import { onThemeChange } from "../../shared/theme.js";

/**
 * The figure of a chart as `chart_of_curve` in `ddp_gui/learn/report/charts.py` describes it.
 * @param {any} about
 */
function figureOf({ title, curve, axis, isLogarithmic, lines, guesses, marks }) {
  const placed = lines.map((each) => ({ ...each, x: placesOn(axis === "time" ? "time" : "step", each.x, null) }));
  const figure = curveFigure(placed, { axis, isLogarithmic }, curve);
  figure.data.unshift(...guesses.map((guess) => guessLine(guess.name, guess)));
  Object.assign(figure.layout, marked(marks), { showlegend: true, hovermode: "x unified" });
  return { ...figure, title };
} // prettier-ignore

/** @param {HTMLElement} box */
function chartIn(box) {
  const figureData = JSON.parse(box.dataset.figure ?? "");
  const chart = new Chart({
    name: `${figureData.curve.replace(":", "-")}-${figureData.axis}`,
    title: figureData.title,
    empty: "",
    figure: () => figureOf(figureData),
  });
  box.prepend(chart.element);
  return chart;
}

/** Draws bars or a waterfall from the values of `instruments.py`. @param {HTMLElement} box */
function drawBars(box) {
  const { picture, runs } = JSON.parse(box.dataset.bars ?? "");
  const drawn = picture.bars ? new BarsPicture(picture) : new WaterfallPicture(picture);
  drawn.update(runs);
  box.replaceChildren(drawn.element);
  // A file has no tooltips.
  for (const button of box.querySelectorAll(".ddp-term")) button.replaceWith(button.textContent ?? "");
}

/** Draws all charts that are on the page, so that they can be printed; a hidden one is drawn when it appears. */
async function drawAll(charts) {
  if (charts.length > 0) await loadPlotly();
  for (const chart of charts) {
    if (chart.element.offsetParent) await chart.drawDue();
    await pause(0);
  }
}

const theme = matchMedia("(prefers-color-scheme: dark)");
const follow = () => setAttribute(document.documentElement, "class", theme.matches ? "dark" : null);
theme.addEventListener("change", follow);
follow();
export const charts = [...document.querySelectorAll("[data-figure]")].map((box) =>
  chartIn(/** @type {HTMLElement} */ (box)),
);
const bars = () =>
  /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-bars]")).forEach(drawBars);
bars();
onThemeChange(() => {
  bars();
  for (const chart of charts) chart.redraw();
});
beginPrinting();
addEventListener("load", () => drawAll(charts));
// A prediction reveals more charts, after the form's own listeners.
addEventListener("submit", () => setTimeout(() => drawAll(charts)));
