// A poll on a phone: the question, the answer, and the result. Logged-in users are redirected to the lesson.

import { person } from "../../auth/person.js";
import { el, setText, showText } from "../../shared/dom.js";
import { address, fetchJson } from "../../shared/net.js";
import { setPreference, preference } from "../../shared/browser.js";
import { orShowError } from "../../shared/dialog.js";
import { ConnectionNote, paragraph } from "../../shared/widgets.js";
import { measuredChoice, Prediction } from "../questions.js";
import { PollFeed, pollAddress, sendAnswer } from "./feed.js";

const WORDS = {
  open: "Thank you. Watch the projector: the poll is closed when everybody has answered.",
  closed: "The poll is closed. Watch the projector: the runs start soon.",
  running: "The runs are training. Watch the projector.",
  revealed: "The runs have ended.",
  ended: "The poll has ended.",
};

/** Fills an element with the question of a poll; returns a function that unmounts it. */
export function mountPoll(root) {
  const pollId = new URLSearchParams(window.location.search).get("id") ?? "";
  document.title = "A poll";
  const waiting = el("p", { class: "ddp-loading", role: "status" }, "Reading the poll …");
  root.replaceChildren(el("div", { class: "ddp ddp-learn-page ddp-poll-phone" }, waiting));
  let view = null;
  let isOver = false;
  const load = async () => {
    const [poll, who] = await Promise.all([fetchJson(pollAddress(pollId)), person()]);
    if (isOver) return;
    if (who.has_login) {
      window.location.replace(address("learn", { lesson: poll.lesson, poll: pollId }));
      return;
    }
    view = new PhoneView(poll);
    root.replaceChildren(view.element);
  };
  load().catch((error) => {
    if (!isOver) setText(waiting, error.message);
  });
  return () => {
    isOver = true;
    view?.close();
  };
}

class PhoneView {
  constructor(poll) {
    this.poll = poll;
    this.key = `poll:${poll.poll_id}`;
    this.stored = preference(this.key, null) ?? { token: token(), prediction: null, isLocked: false };
    setPreference(this.key, this.stored);
    const question = { ...poll.question, because: [] };
    this.prediction = new Prediction(question, this.stored, () => setPreference(this.key, this.stored), () => this.send());
    this.text = el("p", { class: "ddp-poll-state", role: "status" });
    this.connection = new ConnectionNote();
    this.element = el(
      "div",
      { class: "ddp ddp-learn-page ddp-poll-phone" },
      el("h1", {}, poll.title),
      paragraph("hint", "What do you expect? Your answer is anonymous."),
      el("div", { class: "ddp-card" }, this.prediction),
      this.text,
      this.connection,
    );
    this.update(poll);
    this.feed = new PollFeed(poll.poll_id, (state) => this.update(state), (error) => this.connection.heard(error));
  } // prettier-ignore

  async send() {
    this.prediction.button.disabled = true;
    const taken = await orShowError(sendAnswer(this.poll.poll_id, this.stored.prediction, this.stored.token));
    this.prediction.button.disabled = false;
    if (!taken) return;
    this.stored.isLocked = true;
    setPreference(this.key, this.stored);
    this.prediction.lock();
    this.update(this.poll);
  }

  update(state) {
    Object.assign(this.poll, { ...state, question: this.poll.question });
    const { state: now } = this.poll;
    if (now !== "open" && !this.stored.isLocked) this.prediction.lock();
    showText(this.text, now === "open" && !this.stored.isLocked ? "" : WORDS[now]);
    if (now === "revealed") this.reveal().catch((error) => this.connection.heard(error));
  }

  async reveal() {
    if (this.prediction.isDrawn || this.hasRevealed) return;
    this.hasRevealed = true;
    const { question, outcome } = await fetchJson(pollAddress(this.poll.poll_id));
    this.prediction.question.right = question.right;
    if (this.stored.isLocked) this.prediction.reveal(null, outcome);
    else this.prediction.choices?.reveal(measuredChoice(outcome, question.right), null);
  }

  close() {
    this.feed.close();
  }
}

/** A random token that identifies this browser without identifying the user. */
function token() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
