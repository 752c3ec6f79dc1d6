// A lesson followed in a poll: the prediction is sent to the poll, and everyone watches the same runs.

import { person } from "../../auth/person.js";
import { el, setText, show } from "../../shared/dom.js";
import { fetchJson } from "../../shared/net.js";
import { complain } from "../../shared/dialog.js";
import { forgetProgress, keepProgress, progressOf } from "../progress.js";
import { PollFeed, pollAddress, sendAnswer } from "./feed.js";

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
  const wanted = pollId ?? before.poll;
  if (wanted === null || !(await person()).has_login) return null;
  let about;
  try {
    about = await fetchJson(pollAddress(wanted));
  } catch (error) {
    if (error.status !== 404) throw error;
    if (pollId !== null) complain(error.message);
    return null;
  }
  if (about.lesson !== lesson) return null;
  const progress = before.poll === wanted ? before : await forgetProgress(lesson, wanted);
  if (about.mine !== null && !progress.isLocked) {
    keepProgress(lesson, { ...progress, prediction: about.mine, isLocked: true });
  }
  return new FollowedPoll(about);
}

export class FollowedPoll {
  /** @param {any} about the server's description */
  constructor(about) {
    this.about = about;
    this.state = about;
    this.words = el("strong", {});
    this.count = el("span", { class: "ddp-hint" });
    this.trouble = el("p", { hidden: true });
    this.element = el(
      "div",
      { class: "ddp-poll-banner", role: "status" },
      this.words,
      this.count,
      this.trouble,
    );
    this.update(about);
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
      this.about.poll_id,
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
    try {
      await sendAnswer(this.about.poll_id, prediction);
      this.update({ mine: prediction });
      return true;
    } catch (error) {
      complain(error.message);
      return false;
    }
  }

  update(state) {
    this.state = { ...this.state, ...state };
    const { num_answers: count, trouble, mine } = this.state;
    const isIn = this.state.state === "open" && mine !== null;
    setText(this.words, isIn ? SENT : WORDS[this.state.state]);
    setText(this.count, `${count} ${count === 1 ? "prediction" : "predictions"}`);
    setText(this.trouble, trouble);
    show(this.trouble, Boolean(trouble));
  }

  close() {
    this.feed?.close();
  }
}
