// A poll in the teacher's and the projector's view: first the predictions, then the runs.

import { el, svg, setText, section, show, showText } from "../../shared/dom.js";
import { address, fetchJson, callEndpoint, askEvery, lessonPage } from "../../shared/net.js";
import { pollAddress, PollFeed, pollPage } from "./feed.js";
import { number } from "../../shared/format.js";
import { inlines, plainText } from "../text.js";
import {
  ConnectionNote,
  buttonLink,
  buttonRow,
  makeTable,
  paragraph,
  tableRow,
  textButton,
} from "../../shared/widgets.js";
import { onThemeChange } from "../../shared/theme.js";
import { orShowError } from "../../shared/dialog.js";
import { alwaysLarge } from "../../run/header/projector.js";
import { measuredChoice, OutcomeNote } from "../questions.js";
import { resultsOf, PollRuns } from "./results.js";

// The URL of a poll for phones as a QR code and as text, or the reason why phones cannot reach it.

// The quiet zone that QR readers require, in modules.
const QUIET = 4;

/** Returns an element that loads its own content. A class with a login needs no code. */
function joinCard(pollId, { hasLogin, isProjector }) {
  const box = el("div", { class: "ddp-poll-join" });
  const here = hasLogin
    ? el("p", {}, "Log in, open Learn, and press Join.")
    : el("a", { href: address("poll", { id: pollId }) }, "Answer in this browser");
  if (hasLogin) box.append(here);
  fetchJson(pollAddress(pollId, "qr")).then(
    ({ address: url, problem, rows }) => {
      if (url !== null) {
        if (rows.length > 0) box.append(code(rows));
        box.append(
          el("p", {}, "On a phone, open"),
          el("a", { href: url, class: "ddp-poll-address" }, url.replace(/^http:\/\//, "")),
        );
      } else if (!hasLogin || !isProjector) {
        box.append(el("p", { class: hasLogin ? "ddp-hint" : "ddp-connection" }, problem));
        if (!hasLogin) box.append(here);
      }
    },
    (error) => box.append(el("p", { class: "ddp-connection" }, error.message)),
  );
  return box;
}

function code(rows) {
  const size = rows.length + 2 * QUIET;
  const path = rows
    .flatMap((row, y) => [...row].map((dark, x) => (dark === "1" ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : "")))
    .join("");
  return svg(
    "svg",
    { viewBox: `0 0 ${size} ${size}`, class: "ddp-poll-code", role: "img", "aria-label": "QR code of the address", "shape-rendering": "crispEdges" },
    svg("rect", { width: size, height: size, fill: "#fff" }),
    svg("path", { d: path, fill: "#000" }),
  );
} // prettier-ignore

// The predictions by name, for teachers; never shown on the projector.

export class People {
  constructor(poll) {
    this.pollId = poll.poll_id;
    this.question = poll.question;
    this.count = -1;
    this.body = el("tbody", {});
    this.note = el("p", { class: "ddp-hint", role: "status" });
    const table = makeTable("ddp-table", ["Person", "Prediction", "At"], this.body);
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
    const answerText = Array.isArray(answer)
      ? answer.map((value) => number(value, 3)).join(", ")
      : plainText(this.question.choices[answer]);
    const time = new Date(1000 * at).toTimeString().slice(0, 8);
    return tableRow(person, [answerText, time]);
  }
}

// The view.

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
    const lesson = await fetchJson(address("live/learn/lesson", { name: poll.lesson }));
    const polls = await fetchJson(address("live/polls"));
    return new PollView(poll, lesson, { isProjector, mayChange: polls.may_open, hasLogin: polls.has_login });
  }

  constructor(poll, lesson, { isProjector, mayChange, hasLogin }) {
    document.title = `${poll.title} · a poll`;
    this.poll = poll;
    this.isProjector = isProjector;
    this.results = resultsOf(poll.question);
    this.runs = new PollRuns(lesson, poll.question);
    this.people = mayChange && hasLogin && !isProjector ? new People(poll) : null;
    this.doubt = new OutcomeNote(null);
    this.text = el("p", { class: "ddp-poll-state", role: "status" });
    this.count = el("p", { class: "ddp-poll-number" });
    this.trouble = el("p", { class: "ddp-connection", role: "alert", hidden: true });
    this.connection = new ConnectionNote();
    this.buttons = BUTTONS.map(([action, text, isMain, states]) => {
      const button = textButton(text, () => this.act(action), isMain ? "main" : "");
      return { button, action, states };
    });
    this.full = textButton("Full screen", null);
    this.join = section("Predict with us", "poll-join-card", joinCard(poll.poll_id, { hasLogin, isProjector }));
    this.hidden = paragraph("hint", "What the class predicts is shown when the poll is closed.");
    this.early = textButton("Show predictions as they come in", () => this.showEarly(), "", { "aria-pressed": "false" });
    this.mayChange = mayChange;
    this.element = el(
      "div",
      { class: `ddp ddp-learn-page ddp-poll-page${isProjector ? " ddp-poll-projector" : ""}` },
      this.head(lesson, mayChange),
      section("The prediction", "poll-question", el("p", { class: "ddp-lesson-question" }, inlines(poll.question.question)), this.results, this.hidden, this.count, buttonRow(this.early), this.doubt),
      this.join,
      this.runs,
      this.people,
    );
    this.endLarge = isProjector ? alwaysLarge(this.full) : () => {};
    this.endTheme = onThemeChange(() => this.runs.redraw());
    this.update(poll);
    if (poll.state === "revealed") this.showOutcome();
    this.follow();
    this.endReading = askEvery(READ_EVERY_MS, () => this.runs.read(), (error) => this.connection.heard(error));
  } // prettier-ignore

  head(lesson, mayChange) {
    const tools = this.isProjector
      ? [this.full]
      : [
          ...this.buttons.map(({ button }) => button),
          buttonLink("For the projector", { href: pollPage(this.poll.poll_id, true), target: "_blank" }),
        ]; // prettier-ignore
    return el(
      "header",
      { class: "ddp-lesson-head" },
      this.isProjector
        ? null
        : el("a", { href: lessonPage(lesson.name), class: "ddp-lesson-back" }, "← The lesson"),
      el("h1", {}, this.poll.title),
      this.text,
      this.connection,
      this.trouble,
      buttonRow(mayChange ? tools : null),
    );
  }

  follow() {
    const isEarly = this.early.getAttribute("aria-pressed") === "true";
    this.feed = new PollFeed(this.poll.poll_id, (state) => this.update(state), (error) => this.connection.heard(error), isEarly);
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
    const changed = await orShowError(callEndpoint("change_poll", this.poll.poll_id, action));
    if (changed && action === "end") window.location.assign(lessonPage(this.poll.lesson));
    for (const { button } of this.buttons) button.disabled = false;
  }

  update(state) {
    const before = this.poll.state;
    Object.assign(this.poll, state);
    const { state: now, num_answers: count, results, run_ids: runIds, trouble } = this.poll;
    setText(this.text, WORDS[now]);
    setText(this.count, `${count} ${count === 1 ? "prediction" : "predictions"}`);
    showText(this.trouble, trouble ? `The next run could not be started: ${trouble}. Press Start to try again.` : "");
    for (const { button, action, states } of this.buttons) {
      show(button, states.includes(now) || (action === "start" && Boolean(trouble)));
    }
    show(this.join, now === "open");
    show(this.hidden, !results);
    show(this.early, now === "open" && this.mayChange);
    show(this.results.element, Boolean(results));
    if (results) this.results.update(results, this.measuredChoice);
    this.runs.take(runIds ?? [], results);
    this.people?.update(this.poll);
    if (now === "revealed" && before !== now) this.reveal();
  } // prettier-ignore

  /** The index of the choice that the runs showed; undefined while unknown. */
  get measuredChoice() {
    const { state, outcome, question } = this.poll;
    return state === "revealed" ? (measuredChoice(outcome, question.right) ?? undefined) : undefined;
  }

  /** Fetches the outcome, which the server sends only after the runs have ended. */
  async reveal() {
    try {
      const { question, outcome } = await fetchJson(pollAddress(this.poll.poll_id));
      Object.assign(this.poll, { question, outcome });
      this.showOutcome();
    } catch (error) {
      this.connection.heard(error);
    }
  }

  showOutcome() {
    const { question, outcome, results } = this.poll;
    if (results) this.results.update(results, this.measuredChoice);
    if (outcome) this.doubt.update(outcome);
    this.runs.reveal(outcome?.verdict === "doubtful" ? {} : question);
  }

  close() {
    this.feed?.close();
    this.endReading();
    this.endTheme();
    this.endLarge();
    this.runs.close();
  }
}
