// The bandwidth between hosts, measured pair by pair on request.

import { person } from "../auth/person.js";
import { el, icon, setAttribute, setText, show } from "../shared/dom.js";
import { count, dateTime, rate, shortTime } from "../shared/format.js";
import { callEndpoint } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { complain } from "../shared/toast.js";
import { keepRows } from "./parts.js";

// An example model for students: 10 million parameters in float32.
const EXAMPLE_BYTES = 40e6;

/** The button and the latest measurements. */
export class Links {
  constructor() {
    this.isTeacher = true;
    this.isRunning = false;
    this.start = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-main", onclick: () => this.begin() },
      "Measure between hosts",
    );
    this.now = el("p", { class: "ddp-hint", role: "status" });
    this.list = el("ul", { class: "ddp-missing-list" });
    this.element = el(
      "div",
      { class: "ddp-host-links" },
      el(
        "p",
        { class: "ddp-caption" },
        "In every step the hosts average their ",
        term("gradient", "gradients"),
        " over the network. This runs real ",
        term("all-reduce", "all-reduces"),
        " between neighbours, a few seconds for each pair; hosts that train are skipped.",
      ),
      el("div", { class: "ddp-buttons" }, this.start, this.now),
      this.list,
    );
    person().then(({ role }) => {
      this.isTeacher = role === "teacher";
      this.setButton();
    });
  }

  /** Shows the latest measurement from the report. */
  update(check) {
    show(this.element, check.num_links > 0);
    this.isRunning = check.is_running;
    this.setButton();
    setText(this.now, wordsOf(check));
    keepRows(this.list, check.links, JSON.stringify, newLink, () => {});
    show(this.list, check.links.length > 0);
  }

  async begin() {
    this.start.disabled = true;
    try {
      this.update(await callEndpoint("measure_links"));
    } catch (error) {
      complain(error.message);
      this.setButton();
    }
  }

  setButton() {
    this.start.disabled = this.isRunning || !this.isTeacher;
    setAttribute(this.start, "aria-busy", this.isRunning);
  }
}

function wordsOf(check) {
  if (check.error) return check.error;
  if (check.started_unix_s === null) return "";
  const done = `${count(check.links.length)} of ${count(check.num_links)}`;
  return check.is_running ? `Measuring: ${done} done …` : `Measured ${dateTime(check.started_unix_s)}.`;
}

function newLink(link) {
  const isTroubled = link.problem !== "";
  const sign = isTroubled ? el("span", { class: "ddp-missing-sign" }, icon("warning")) : null;
  return el(
    "li",
    { "data-problem": isTroubled },
    el("h3", {}, link.hosts.join(" – "), sign),
    link.bytes_per_s === null ? null : el("p", {}, figures(link)),
    isTroubled ? el("p", {}, link.problem) : null,
  );
}

function figures(link) {
  return [
    rate(link.bytes_per_s),
    `${shortTime(link.latency_s)} for a small message`,
    `${shortTime(EXAMPLE_BYTES / link.bytes_per_s)} a step for the gradients of 10 million parameters`,
    link.backend,
  ].join(" · ");
}
