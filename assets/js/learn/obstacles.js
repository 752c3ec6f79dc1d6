// What is in the way of a lesson on this machine, said before the prediction.

import { el } from "../shared/dom.js";

/**
 * @param {string[]} obstacles why a run cannot be started as the lesson has it
 * @param {string} way what is done instead; empty where nothing helps
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
