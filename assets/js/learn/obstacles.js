// The obstacles to a lesson on this machine, shown before the prediction.

import { el } from "../shared/dom.js";

/**
 * @param {string[]} obstacles reasons why a run cannot be started as the lesson defines it
 * @param {string} way the alternative that is run instead; empty without an alternative
 */
export function obstacleBox(obstacles, way) {
  return el(
    "div",
    { class: "ddp-connection", role: "status" },
    el("p", {}, "This machine cannot run this lesson as defined:"),
    el(
      "ul",
      {},
      obstacles.map((words) => el("li", {}, words)),
    ),
    el("p", {}, way || "You can still predict. The lesson continues when nothing is missing."),
  );
}
