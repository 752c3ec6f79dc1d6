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
    el("p", {}, "This lesson cannot be run as it is on this machine now:"),
    el(
      "ul",
      {},
      obstacles.map((words) => el("li", {}, words)),
    ),
    el("p", {}, way || "You can still predict, and read how it goes on, when it has what is missing."),
  );
}
