// A lesson in a poll: the open polls, joining one, and the lesson whose prediction and runs belong to it.

import { person } from "../../auth/person.js";
import { el, setText, show, showText } from "../../shared/dom.js";
import { fetchJson, address, callEndpoint, askEvery } from "../../shared/net.js";
import { orShowError, showError } from "../../shared/dialog.js";
import { buttonLink, textButton } from "../../shared/widgets.js";
import { forgetProgress, keepProgress, progressOf } from "../progress.js";
import { PollFeed, pollAddress, sendAnswer, pollPage } from "./feed.js";
import { LessonView } from "../lesson.js";

const SENT = "Your prediction is recorded. The poll is still open.";
const WORDS = {
  open: "Make your prediction and lock it, as everyone in the class does.",
  closed: "The poll is closed. The runs will start for everybody soon.",
  running: "Everybody watches the same runs.",
  revealed: "The runs have ended. Continue the lesson on your own.",
  ended: "The poll has ended. Continue the lesson on your own.",
};

/**
 * Returns the poll that a lesson belongs to, or null. Joining another poll restarts the lesson.
 * @param {string} lesson
 * @param {string | null} pollId from the URL
 */
export async function joinedPoll(lesson, pollId) {
  const before = progressOf(lesson);
  const pollToJoin = pollId ?? before.poll;
  if (pollToJoin === null || !(await person()).has_login) return null;
  let poll;
  try {
    poll = await fetchJson(pollAddress(pollToJoin));
  } catch (error) {
    if (error.status !== 404) throw error;
    if (pollId !== null) showError(error.message);
    return null;
  }
  if (poll.lesson !== lesson) return null;
  const progress = before.poll === pollToJoin ? before : await forgetProgress(lesson, pollToJoin);
  if (poll.mine !== null && !progress.isLocked) {
    keepProgress(lesson, { ...progress, prediction: poll.mine, isLocked: true });
  }
  return new FollowedPoll(poll);
}

class FollowedPoll {
  /** @param {any} poll the server's description */
  constructor(poll) {
    this.poll = poll;
    this.state = poll;
    this.text = el("strong", {});
    this.count = el("span", { class: "ddp-hint" });
    this.trouble = el("p", { hidden: true });
    this.element = el(
      "div",
      { class: "ddp-poll-banner", role: "status" },
      this.text,
      this.count,
      this.trouble,
    );
    this.update(poll);
  }

  /** True while the poll decides when runs start. */
  get isGoing() {
    return this.state.state !== "ended" && this.state.state !== "revealed";
  }

  /**
   * @param {(runIds: string[]) => void} onRuns
   */
  follow(onRuns) {
    this.feed = new PollFeed(
      this.poll.poll_id,
      (state) => {
        this.update(state);
        onRuns(state.run_ids ?? []);
      },
      () => {},
    );
  }

  /**
   * Sends a prediction; returns true if it may be locked. After the poll has closed, the prediction is not
   * sent.
   */
  async send(prediction) {
    if (this.state.state !== "open") return true;
    if (!(await orShowError(sendAnswer(this.poll.poll_id, prediction)))) return false;
    this.update({ mine: prediction });
    return true;
  }

  update(state) {
    this.state = { ...this.state, ...state };
    const { num_answers: count, trouble, mine } = this.state;
    const isIn = this.state.state === "open" && mine !== null;
    setText(this.text, isIn ? SENT : WORDS[this.state.state]);
    setText(this.count, `${count} ${count === 1 ? "prediction" : "predictions"}`);
    showText(this.trouble, trouble);
  }

  close() {
    this.feed?.close();
  }
}

// The view of a lesson that is followed in a poll.

export class PollLessonView extends LessonView {
  /**
   * @param {any} lesson the server's description
   * @param {FollowedPoll} poll
   */
  constructor(lesson, poll) {
    super(lesson);
    this.poll = poll;
    // The server sends the lesson's commands to the runs of a poll.
    for (const run of this.runs) run.commands = [];
    this.element.firstElementChild?.append(poll.element);
    // The runs belong to the teacher: remove the button that deletes them.
    this.foot.resets[1].remove();
    poll.follow((runIds) => this.takeRuns(runIds));
    this.update();
  }

  /** @override */
  lock() {
    this.poll.send(this.progress.prediction).then((isTaken) => {
      if (isTaken) super.lock();
    });
  }

  /** Adopts the runs of the poll. */
  takeRuns(runIds) {
    this.progress.runs = this.runs.map(({ runId, index }) => runId ?? runIds[index] ?? null);
    if (this.adopt()) {
      // With all runs present the learner continues alone; until then only the poll starts runs.
      this.progress.isStarted = !this.progress.runs.includes(null);
      this.keep();
      this.read().catch((error) => this.note.heard(error));
    }
    this.update();
  }

  /** @override */
  async startOne(run) {
    if (this.poll?.isGoing) return;
    run.commands = this.lesson.runs[run.index].commands;
    await super.startOne(run);
  }

  /** @override */
  updateStart() {
    super.updateStart();
    if (!this.poll?.isGoing) return;
    show(this.start, false);
    setText(this.startNote, this.progress.isStarted ? "" : "The runs are started once for everybody.");
  }

  /** @override */
  close() {
    super.close();
    this.poll.close();
  }
}

// The list of open polls, and the teacher's button to open one.

const ASK_EVERY_MS = 3000;

export class PollTools {
  /** @param {string | null} lesson null on the page of all lessons */
  constructor(lesson) {
    this.lesson = lesson;
    this.shown = "";
    this.list = el("ul", { class: "ddp-poll-list", role: "status" });
    this.button = textButton("Open as a poll", () => this.open(), "", { hidden: true });
    this.table = buttonLink("Who did which lesson (CSV)", { hidden: true, href: address("live/learn/class.csv"), download: "" });
    this.element = el("div", { class: "ddp-poll-tools", hidden: true }, this.list, this.button, this.table);
    this.end = askEvery(ASK_EVERY_MS, () => this.ask());
  } // prettier-ignore

  async ask() {
    const openPolls = await fetchJson(address("live/polls"));
    const polls = openPolls.polls.filter(({ lesson }) => this.lesson === null || lesson === this.lesson);
    show(this.button, openPolls.may_open && this.lesson !== null);
    show(this.table, openPolls.may_open && openPolls.has_login && this.lesson === null);
    show(this.element, polls.length > 0 || !this.button.hidden || !this.table.hidden);
    const shown = JSON.stringify([polls, openPolls.may_open]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.list.replaceChildren(...polls.map((poll) => row(poll, openPolls)));
  }

  async open() {
    this.button.disabled = true;
    const poll = await orShowError(callEndpoint("open_poll", this.lesson));
    if (poll) window.location.assign(pollPage(poll.poll_id));
    else this.button.disabled = false;
  }

  close() {
    this.end();
  }
}

function row({ poll_id: pollId, lesson, title, state, opened_by: teacher }, { may_open: mayOpen, has_login: hasLogin }) {
  const join = address("learn", { lesson, poll: pollId });
  return el(
    "li",
    { class: "ddp-poll-banner" },
    el("span", {}, teacher ? `${teacher} has a poll on “${title}”` : `There is a poll on “${title}”`, el("span", { class: "ddp-hint" }, ` · ${state}`)),
    hasLogin ? buttonLink("Join", { href: join }, "main") : null,
    mayOpen ? buttonLink("The poll’s page", { href: pollPage(pollId) }) : null,
  );
} // prettier-ignore
