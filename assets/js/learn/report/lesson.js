// The stages of a lesson in a file: the prediction is locked before the recorded runs are shown.

import { svg } from "../../shared/dom.js";
import { closeness, DrawnCurve } from "../drawn_curve.js";

const main = /** @type {HTMLElement} */ (document.querySelector("main.lesson-page"));

/** @param {HTMLFormElement} form */
function marked(form) {
  const choices = /** @type {HTMLFieldSetElement} */ (form.querySelector("fieldset"));
  const right = choices.dataset.right;
  const inputs = [...form.querySelectorAll("input")];
  const chosen = inputs.find((input) => input.checked)?.value;
  for (const input of inputs) {
    input.disabled = true;
    const label = /** @type {HTMLElement} */ (input.closest("label"));
    if (input.value === right) label.dataset.state = "right";
    else if (input.checked && right !== "") label.dataset.state = "wrong";
  }
  if (right === "") return "The runs do not show which choice is right.";
  return chosen === right ? "Right." : "Not what happened: the right choice is marked.";
}

/**
 * Draws the measured values over a locked curve.
 * @param {DrawnCurve} curve
 */
function compared(curve, { low, high, measured }) {
  curve.lock();
  const places = measured.flatMap((value, index) => (value === null ? [] : [index]));
  const points = places.map((index) => `${curve.x(index)},${curve.y(measured[index])}`).join(" ");
  curve.picture.append(svg("polyline", { class: "ddp-measured-line", points }));
  if (places.length === 0) return "There is no measurement to compare it with.";
  const distances = places.map((index) => Math.abs(curve.values[index] - measured[index]));
  const share = distances.reduce((sum, each) => sum + each, 0) / places.length / (high - low);
  return `${closeness(share)}. The dashed line is the measured one.`;
}

/** @param {HTMLFormElement} form */
function prepared(form) {
  const box = /** @type {HTMLElement | null} */ (form.querySelector("[data-curve]"));
  const curveData = JSON.parse(box?.dataset.curve ?? "null");
  const curve = box && new DrawnCurve(curveData, null, () => {});
  if (box && curve) box.append(curve.element);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const output = /** @type {HTMLElement} */ (form.querySelector(".said"));
    if (curve && !curve.isDrawn) {
      output.textContent = "Draw your curve first.";
      return;
    }
    output.textContent = curve ? compared(curve, curveData) : marked(form);
    form.dataset.done = "";
    if (form.dataset.form === "prediction") main.dataset.predicted = "";
  });
}

main.dataset.staged = "";
for (const form of document.forms) prepared(form);
