// The list of open polls, and the teacher's button to open one.

import { el, makeButton, show } from "../../shared/dom.js";
import { address, callEndpoint, fetchJson } from "../../shared/net.js";
import { askEvery } from "../../shared/polling.js";
import { complain } from "../../shared/dialog.js";
import { pollPage } from "./feed.js";

const ASK_EVERY_MS = 3000;

export class PollTools {
  /** @param {string | null} lesson null on the page of all lessons */
  constructor(lesson) {
    this.lesson = lesson;
    this.shown = "";
    this.list = el("ul", { class: "ddp-poll-list", role: "status" });
    this.button = makeButton({ class: "ddp-button", hidden: true, onclick: () => this.open() },
      "Open as a poll",
    );
    this.table = el("a", { class: "ddp-button", hidden: true, href: address("live/learn/class.csv"), download: "" }, "Who did which lesson (CSV)");
    this.element = el("div", { class: "ddp-poll-tools", hidden: true }, this.list, this.button, this.table);
    this.end = askEvery(ASK_EVERY_MS, () => this.ask(), () => {});
  } // prettier-ignore

  async ask() {
    const found = await fetchJson(address("live/polls"));
    const polls = found.polls.filter(({ lesson }) => this.lesson === null || lesson === this.lesson);
    show(this.button, found.may_open && this.lesson !== null);
    show(this.table, found.may_open && found.has_login && this.lesson === null);
    show(this.element, polls.length > 0 || !this.button.hidden || !this.table.hidden);
    const shown = JSON.stringify([polls, found.may_open]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.list.replaceChildren(...polls.map((poll) => row(poll, found)));
  }

  async open() {
    this.button.disabled = true;
    try {
      const { poll_id: pollId } = await callEndpoint("open_poll", this.lesson);
      window.location.assign(pollPage(pollId));
    } catch (error) {
      complain(error.message);
      this.button.disabled = false;
    }
  }

  close() {
    this.end();
  }
}

function row({ poll_id: pollId, lesson, title, state, opened_by: teacher }, { may_open: mayOpen, has_login: hasLogin }) {
  const join = address(`learn?lesson=${encodeURIComponent(lesson)}&poll=${encodeURIComponent(pollId)}`);
  return el(
    "li",
    { class: "ddp-poll-banner" },
    el("span", {}, teacher ? `${teacher} has a poll on “${title}”` : `There is a poll on “${title}”`, el("span", { class: "ddp-hint" }, ` · ${state}`)),
    hasLogin ? el("a", { class: "ddp-button ddp-button-main", href: join }, "Join") : null,
    mayOpen ? el("a", { class: "ddp-button", href: pollPage(pollId) }, "The poll’s page") : null,
  );
} // prettier-ignore
