// A poll in the teacher's and the projector's view: first the predictions, then the runs.

import { loadPlotly } from "../../charts/chart.js";
import { el, makeButton, section, setText, show } from "../../shared/dom.js";
import { address, callEndpoint, fetchJson } from "../../shared/net.js";
import { askEvery } from "../../shared/polling.js";
import { onThemeChange } from "../../shared/theme.js";
import { complain } from "../../shared/dialog.js";
import { alwaysLarge } from "../../run/head/projector.js";
import { lessonPage } from "../foot.js";
import { happened, OutcomeNote } from "../pictures/outcome.js";
import { inlines } from "../text.js";
import { PollFeed, pollAddress, pollPage } from "./feed.js";
import { People } from "./people.js";
import { joinCard } from "./qr.js";
import { resultsOf } from "./results.js";
import { PollRuns } from "./runs.js";

const READ_EVERY_MS = 700;
const WORDS = {
  open: "Open for predictions.",
  closed: "Closed. The runs have not been started yet.",
  running: "The runs are training. Everybody watches the same runs.",
  revealed: "The runs have ended.",
  ended: "The poll has ended.",
};
/**
 * The teacher's buttons: action, label, whether it is the main button, and the states in which it is shown.
 */
/** @type {[string, string, boolean, string[]][]} */
const BUTTONS = [
  ["close", "Close the poll", true, ["open"]],
  ["start", "Start the runs for everybody", true, ["closed"]],
  ["reopen", "Open it again", false, ["closed"]],
  ["end", "End the poll", false, ["open", "closed", "running", "revealed"]],
];

export class PollView {
  /** Loads a poll and its lesson. */
  static async of(pollId, isProjector) {
    const poll = await fetchJson(pollAddress(pollId));
    const lesson = await fetchJson(address(`live/learn/lesson?name=${encodeURIComponent(poll.lesson)}`));
    const polls = await fetchJson(address("live/polls"));
    return new PollView(poll, lesson, { isProjector, mayChange: polls.may_open, hasLogin: polls.has_login });
  }

  constructor(poll, lesson, { isProjector, mayChange, hasLogin }) {
    document.title = `${poll.title} · a poll`;
    this.poll = poll;
    this.isProjector = isProjector;
    this.results = resultsOf(poll.question);
    this.runs = new PollRuns(lesson, poll.question, (chart) => this.drawOne(chart));
    this.people = mayChange && hasLogin && !isProjector ? new People(poll) : null;
    this.doubt = new OutcomeNote(null);
    this.words = el("p", { class: "ddp-poll-state", role: "status" });
    this.count = el("p", { class: "ddp-poll-number" });
    this.trouble = el("p", { class: "ddp-connection", role: "alert", hidden: true });
    this.connection = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.buttons = BUTTONS.map(([action, words, isMain, states]) => {
      const button = makeButton({ class: `ddp-button${isMain ? " ddp-button-main" : ""}`, onclick: () => this.act(action) }, words);
      return { button, action, states };
    });
    this.full = makeButton({ class: "ddp-button" }, "Full screen");
    this.join = section("Predict with us", "poll-join-card", joinCard(poll.poll_id, { hasLogin, isProjector }));
    this.hidden = el("p", { class: "ddp-hint" }, "What the class predicts is shown when the poll is closed.");
    this.early = makeButton({ class: "ddp-button", "aria-pressed": "false", onclick: () => this.showEarly() }, "Show predictions as they come in");
    this.mayChange = mayChange;
    this.element = el(
      "div",
      { class: `ddp ddp-learn-page ddp-poll-page${isProjector ? " ddp-poll-projector" : ""}` },
      this.head(lesson, mayChange),
      section("The prediction", "poll-question", el("p", { class: "ddp-lesson-question" }, inlines(poll.question.question)), this.results.element, this.hidden, this.count, el("div", { class: "ddp-buttons" }, this.early), this.doubt.element),
      this.join,
      this.runs.element,
      this.people?.element,
    );
    this.endLarge = isProjector ? alwaysLarge(this.full) : () => {};
    this.endTheme = onThemeChange(() => this.runs.redraw());
    this.update(poll);
    if (poll.state === "revealed") this.showOutcome();
    this.follow();
    this.endReading = askEvery(READ_EVERY_MS, () => this.runs.read(), (error) => this.heard(error));
    loadPlotly().then((plotly) => {
      this.plotly = plotly;
      this.runs.redraw();
    }, () => complain("The charts could not be loaded (plotly.min.js). Reload the page."));
  } // prettier-ignore

  head(lesson, mayChange) {
    const tools = this.isProjector
      ? [this.full]
      : [
          ...this.buttons.map(({ button }) => button),
          el("a", { class: "ddp-button", href: pollPage(this.poll.poll_id, true), target: "_blank" }, "For the projector"),
        ]; // prettier-ignore
    return el(
      "header",
      { class: "ddp-lesson-head" },
      this.isProjector
        ? null
        : el("a", { href: lessonPage(lesson.name), class: "ddp-lesson-back" }, "← The lesson"),
      el("h1", {}, this.poll.title),
      this.words,
      this.connection,
      this.trouble,
      el("div", { class: "ddp-buttons" }, mayChange ? tools : null),
    );
  }

  follow() {
    const isEarly = this.early.getAttribute("aria-pressed") === "true";
    this.feed = new PollFeed(this.poll.poll_id, (state) => this.update(state), (error) => this.heard(error), isEarly);
  } // prettier-ignore

  /** Toggles the display of predictions while the poll is open, on this page only. */
  showEarly() {
    const isEarly = this.early.getAttribute("aria-pressed") === "true";
    this.early.setAttribute("aria-pressed", String(!isEarly));
    this.feed?.close();
    this.follow();
  }

  async act(action) {
    for (const { button } of this.buttons) button.disabled = true;
    try {
      await callEndpoint("change_poll", this.poll.poll_id, action);
      if (action === "end") window.location.assign(lessonPage(this.poll.lesson));
    } catch (error) {
      complain(error.message);
    }
    for (const { button } of this.buttons) button.disabled = false;
  }

  update(state) {
    const before = this.poll.state;
    Object.assign(this.poll, state);
    const { state: now, num_answers: count, results, run_ids: runIds, trouble } = this.poll;
    setText(this.words, WORDS[now]);
    setText(this.count, `${count} ${count === 1 ? "prediction" : "predictions"}`);
    show(this.trouble, Boolean(trouble));
    setText(this.trouble, trouble ? `The next run could not be started: ${trouble}. Press Start to try again.` : "");
    for (const { button, action, states } of this.buttons) {
      show(button, states.includes(now) || (action === "start" && Boolean(trouble)));
    }
    show(this.join, now === "open");
    show(this.hidden, !results);
    show(this.early, now === "open" && this.mayChange);
    show(this.results.element, Boolean(results));
    if (results) this.results.update(results, this.happened);
    this.runs.take(runIds ?? [], results);
    this.people?.update(this.poll);
    if (now === "revealed" && before !== now) this.reveal();
  } // prettier-ignore

  /** The index of the choice that the runs showed; undefined while unknown. */
  get happened() {
    const { state, outcome, question } = this.poll;
    return state === "revealed" ? (happened(outcome, question.right) ?? undefined) : undefined;
  }

  /** Fetches the outcome, which the server sends only after the runs have ended. */
  async reveal() {
    try {
      const { question, outcome } = await fetchJson(pollAddress(this.poll.poll_id));
      Object.assign(this.poll, { question, outcome });
      this.showOutcome();
    } catch (error) {
      this.heard(error);
    }
  }

  showOutcome() {
    const { question, outcome, results } = this.poll;
    if (results) this.results.update(results, this.happened);
    if (outcome) this.doubt.update(outcome);
    this.runs.reveal(outcome?.verdict === "doubtful" ? {} : question);
  }

  drawOne(chart) {
    if (this.plotly && chart.element.isConnected && chart.isDue) chart.draw(this.plotly);
  }

  heard(error) {
    show(this.connection, error !== null);
    if (error) setText(this.connection, `${error.message} Trying again …`);
  }

  close() {
    this.feed?.close();
    this.endReading();
    this.endTheme();
    this.endLarge();
    this.runs.close();
  }
}
