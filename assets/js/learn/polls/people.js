// The predictions by name, for teachers; never shown on the projector.

import { columnHeads, el, setText } from "../../shared/dom.js";
import { number } from "../../shared/format.js";
import { fetchJson } from "../../shared/net.js";
import { words } from "../text.js";
import { pollAddress } from "./feed.js";

export class People {
  constructor(poll) {
    this.pollId = poll.poll_id;
    this.question = poll.question;
    this.count = -1;
    this.body = el("tbody", {});
    this.note = el("p", { class: "ddp-hint", role: "status" });
    const table = el(
      "table",
      { class: "ddp-table" },
      el("thead", {}, el("tr", {}, columnHeads(["Person", "Prediction", "At"]))),
      this.body,
    );
    this.element = el(
      "details",
      { class: "ddp-fold ddp-card ddp-poll-people", ontoggle: () => this.read() },
      el("summary", {}, "Who predicted what (only teachers see this)"),
      this.note,
      el("div", { class: "ddp-compare-scroll", tabindex: 0, role: "group", "aria-label": "Who predicted what" }, table),
    );
  } // prettier-ignore

  update({ num_answers: count }) {
    if (count === this.count) return;
    this.count = count;
    this.read();
  }

  async read() {
    if (!this.element.open) return;
    try {
      const { people } = await fetchJson(pollAddress(this.pollId, "people"));
      this.body.replaceChildren(...people.map((each) => this.row(each)));
      setText(this.note, people.length > 0 ? "" : "No predictions yet.");
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  row({ person, answer, answered_unix_s: at }) {
    const said = Array.isArray(answer)
      ? answer.map((value) => number(value, 3)).join(", ")
      : words(this.question.choices[answer]);
    const time = new Date(1000 * at).toTimeString().slice(0, 8);
    return el("tr", {}, el("th", { scope: "row" }, person), el("td", {}, said), el("td", {}, time));
  }
}
