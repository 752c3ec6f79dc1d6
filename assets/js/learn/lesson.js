// A lesson: predict, run, see, explain, check. Each part opens when the previous one is done.

import { el, show, setAttribute, section, setText } from "../shared/dom.js";
import { address, callEndpoint, fetchJson, askEvery, lessonPage } from "../shared/net.js";
import { ConnectionNote, buttonLink, buttonRow, paragraph, textButton } from "../shared/widgets.js";
import { onThemeChange } from "../shared/theme.js";
import { orShowError, showError } from "../shared/dialog.js";
import { LessonRun, chartStyles } from "./lesson_run.js";
import { Finding, Prediction, Question } from "./questions.js";
import { makePicture } from "./pictures.js";
import { forgetProgress, keepProgress, oneAtATime, progressOf } from "./progress.js";
import { openReportDialog } from "./report/report.js";
import { blocks } from "./text.js";

// The head of a lesson.

export function lessonHead({ number, title, minutes, summary }, ...more) {
  return el(
    "header",
    { class: "ddp-lesson-head" },
    el("a", { href: address("learn"), class: "ddp-lesson-back" }, "← All lessons"),
    el("h1", {}, `${number}. ${title}`),
    paragraph("caption", `${summary} About ${minutes} minutes.`),
    more,
  );
}

// The end of a lesson: a link to the next one, and buttons to repeat it.

export class LessonEnd {
  /**
   * @param {string | null} next the URL of the next lesson
   * @param {() => void} onReport
   * @param {((withRuns: boolean) => void) | null} onReset null if the lesson cannot be reset
   */
  constructor(next, onReport, onReset = null) {
    const again = (text, withRuns) => textButton(text, () => onReset?.(withRuns));
    this.done = el("p", { class: "ddp-lesson-done", role: "status" }, "You have completed this lesson.");
    this.next = buttonLink("Next lesson", { href: next });
    this.hasNext = next !== null;
    this.report = textButton("Lab report", onReport);
    this.resets = onReset ? [again("Do it again", false), again("Do it again, delete its runs", true)] : [];
    this.element = el(
      "footer",
      { class: "ddp-lesson-foot" },
      this.done,
      buttonRow(this.next, this.report, this.resets),
    );
  }

  /**
   * @param {{ isDone: boolean, hasBegun: boolean, isRunning?: boolean }} lesson
   */
  update({ isDone, hasBegun, isRunning = false }) {
    show(this.done, isDone);
    show(this.next, isDone && this.hasNext);
    show(this.report, hasBegun);
    for (const button of this.resets) {
      show(button, hasBegun);
      button.disabled = isRunning;
    }
  }
}

// The parts of a lesson as a row that shows the progress.

const TITLES = { predict: "Predict", run: "Run", see: "See", explain: "Explain", check: "Check" };

/** The parts in order. */
const STAGES = Object.keys(TITLES);

class Way {
  constructor() {
    this.marks = Object.values(TITLES).map((title) => el("li", {}, title));
    this.element = el("ol", { class: "ddp-lesson-way", "aria-label": "The parts of the lesson" }, this.marks);
  }

  /**
   * @param {string} stage the current part, or "done"
   * @param {number} numOpen the number of parts that are done
   */
  update(stage, numOpen) {
    STAGES.forEach((name, index) => {
      const isNow = stage === name;
      const before = index < numOpen ? "done" : "open";
      this.marks[index].dataset.state = isNow ? "now" : before;
      setAttribute(this.marks[index], "aria-current", isNow ? "step" : null);
    });
  }
}

// The obstacles to a lesson on this machine, shown before the prediction.

/**
 * @param {string[]} obstacles reasons why a run cannot be started as the lesson defines it
 * @param {string} way the alternative that is run instead; empty without an alternative
 */
function obstacleBox(obstacles, way) {
  return el(
    "div",
    { class: "ddp-connection", role: "status" },
    el("p", {}, "This machine cannot run this lesson as defined:"),
    el(
      "ul",
      {},
      obstacles.map((text) => el("li", {}, text)),
    ),
    el("p", {}, way || "You can still predict. The lesson continues when nothing is missing."),
  );
}

// The lesson itself.

const READ_EVERY_MS = 700;
// Labels of the start button, by the number of runs.
const RUN_COUNTS = [
  "",
  "the run",
  "both runs",
  "all three runs",
  "all four runs",
  "all five runs",
  "all six runs",
];
// The number of open parts by stage; "run" includes the pictures, which can be seen while the runs are live.
const NUM_OPEN = { predict: 1, run: 3 };

export class LessonView {
  /** @param {any} lesson the server's description */
  constructor(lesson) {
    document.title = `${lesson.title} · Rankscope`;
    this.lesson = lesson;
    this.progress = progressOf(lesson.name);
    this.runs = lesson.runs.map(
      (about, index) => new LessonRun(about.name, index, this.progress.runs[index] ?? null, { ...about, views: chartStyles(lesson) }),
    );
    /** @type {Map<number, LessonRun[]>} The runs of each question. */
    this.attempts = new Map();
    this.prediction = new Prediction(lesson.prediction, this.progress, () => this.keep(), () => this.lock(), () => this.measureAgain());
    this.pictures = lesson.pictures.map((about) => makePicture(about, this.prediction));
    this.findings = lesson.pictures.map((about) => new Finding(about, () => this.measureAgain()));
    /** The outcome; null until the server has compared the current runs. */
    this.outcome = null;
    this.questions = lesson.questions.map((about, number) => this.question(about, number));
    for (const [number, made] of Object.entries(this.progress.attempts)) {
      for (const { choice, runId } of made) this.addAttempt(Number(number), choice, runId);
    }
    this.start = textButton("", () => this.wantRuns(), "main");
    this.startNote = paragraph("hint");
    this.way = new Way();
    this.note = new ConnectionNote();
    this.foot = new LessonEnd(lesson.next && lessonPage(lesson.next), () => openReportDialog(lesson.name), (withRuns) => this.reset(withRuns));
    this.sections = this.makeSections();
    this.element = el("div", { class: "ddp ddp-learn-page ddp-lesson" }, lessonHead(lesson, this.way), ...Object.values(this.sections), this.foot);
    this.endTheme = onThemeChange(() => {
      for (const run of this.allRuns) run.redraw();
      this.update();
    });
    this.update();
    this.endReading = askEvery(READ_EVERY_MS, () => this.read(), (error) => this.note.heard(error));
  } // prettier-ignore

  get allRuns() {
    return [...this.runs, ...[...this.attempts.values()].flat()];
  }

  /** True if all runs of the lesson have ended as expected. */
  get isRevealed() {
    return this.runs.every((run) => run.isOver && !run.isSpoilt);
  }

  get stage() {
    if (!this.progress.isLocked) return "predict";
    if (!this.isRevealed) return "run";
    return this.progress.isDone ? "done" : "check";
  }

  makeSections() {
    const { before, see, explain, obstacles, way } = this.lesson;
    this.runList = el("ul", { class: "ddp-lesson-runs" }, this.runs);
    this.see = el("div", { class: "ddp-lesson-text", hidden: true }, blocks(see));
    const hindered = obstacles.length > 0 ? obstacleBox(obstacles, way) : null;
    return {
      predict: section(
        "1. Predict",
        "lesson-predict",
        hindered,
        el("div", { class: "ddp-lesson-text" }, blocks(before)),
        this.prediction,
      ),
      run: section(
        "2. Run",
        "lesson-run",
        buttonRow(this.start, this.startNote),
        this.note,
        this.runList,
      ),
      see: section("3. See", "lesson-see", this.see, el("div", { class: "ddp-lesson-pictures" }, this.pictures.map((picture, index) => this.findings[index].around(picture)))),
      explain: section("4. Explain", "lesson-explain", el("div", { class: "ddp-lesson-text" }, blocks(explain))),
      check: section("5. Check", "lesson-check", this.questions),
    }; // prettier-ignore
  }

  question(about, number) {
    return new Question(about, number, this.progress, {
      onAnswer: () => {
        this.progress.isDone = this.questions.every((each) => each.number in this.progress.answers);
        this.keep();
        this.update();
      },
      onAttempt: async (which, choice) => {
        const started = await orShowError(callEndpoint("start_lesson_run", this.lesson.name, about.attempt.run, which, choice));
        if (!started) return;
        const { run_id: runId } = started;
        (this.progress.attempts[which] ??= []).push({ choice, runId });
        this.keep();
        this.addAttempt(which, choice, runId);
        this.update();
      },
    }); // prettier-ignore
  }

  addAttempt(number, choice, runId) {
    const { commands } = this.lesson.runs[this.lesson.questions[number].attempt.run];
    const run = new LessonRun(choice, this.allRuns.length, runId, {
      commands,
      views: chartStyles(this.lesson),
    });
    this.attempts.set(number, [...(this.attempts.get(number) ?? []), run]);
    this.questions[number]?.runs.append(run.element);
  }

  lock() {
    this.progress.isLocked = true;
    this.prediction.lock();
    this.keep();
    this.update();
    this.start.focus();
  }

  wantRuns() {
    this.progress.isStarted = true;
    // A new round, so that deleted runs do not come back from the stored progress.
    if (this.runs.some((run) => run.isGone)) this.progress.round += 1;
    for (const run of this.runs) {
      if (run.isGone || run.isSpoilt) run.started(null);
    }
    this.progress.runs = this.runs.map(({ runId }) => runId);
    this.keep();
    this.update();
    orShowError(this.read());
  }

  /**
   * Reads all runs, and starts the next one when the previous one has ended: concurrent runs would disturb
   * each other.
   */
  async read() {
    await Promise.all(this.allRuns.map((run) => run.read()));
    const next = this.runs.find(({ runId }) => runId === null);
    const isFree = this.runs.every((run) => run.runId === null || run.isOver);
    if (this.progress.isStarted && next && isFree && !this.isStarting) await this.startOne(next);
    await this.compare();
    if (!this.isClosed) this.update();
  }

  /** Fetches the outcome from the server, once per set of ended runs. */
  async compare() {
    if (!this.isRevealed) return;
    const query = new URLSearchParams({ name: this.lesson.name });
    for (const { runId } of this.runs) query.append("run", runId ?? "");
    for (const [number, made] of this.attempts) {
      const names = Object.keys(this.lesson.questions[number].attempt.choices);
      const over = made.filter((run) => run.isOver && !run.isGone);
      for (const { name, runId } of over) {
        query.append("attempt", `${number}:${names.indexOf(name)}:${runId}`);
      }
    }
    if (this.compared === String(query)) return;
    const outcome = await fetchJson(address(`live/learn/outcome?${query}`));
    this.compared = String(query);
    this.outcome = outcome;
  }

  /** Runs all runs of the lesson again; prediction and answers remain. */
  measureAgain() {
    // A second job running at the same time would disturb the measured times.
    if (this.isStarting || this.runs.some(({ runId, isOver }) => runId !== null && !isOver)) return;
    for (const run of this.runs) run.started(null);
    Object.assign(this, { outcome: null, compared: null });
    for (const finding of this.findings) finding.update(null);
    this.progress.round += 1;
    this.wantRuns();
    this.sections.run.scrollIntoView({ block: "start" });
  }

  /** Adopts the runs that another page of the same user has started; returns true if there were any. */
  adopt() {
    const news = this.runs.filter(({ runId, index }) => runId === null && this.progress.runs[index]);
    for (const run of news) run.started(this.progress.runs[run.index]);
    return news.length > 0;
  }

  async startOne(run) {
    this.isStarting = true;
    await oneAtATime(() => this.startUnlessStarted(run));
    this.isStarting = false;
    this.keep();
  }

  async startUnlessStarted(run) {
    this.keep();
    if (this.adopt()) return;
    const request = callEndpoint("start_lesson_run", this.lesson.name, run.index, null, null);
    const started = await orShowError(request);
    if (started) {
      run.started(started.run_id);
      this.progress.runs = this.runs.map((each) => each.runId);
    } else this.progress.isStarted = false;
    this.keep();
  }

  update() {
    const { stage } = this;
    const numOpen = NUM_OPEN[stage] ?? STAGES.length;
    Object.values(this.sections).forEach((part, index) => show(part, index < numOpen));
    this.way.update(stage, stage === "done" ? STAGES.length : numOpen - 1);
    this.updateStart();
    if (this.isRevealed) this.reveal();
    for (const question of this.questions) {
      question.update(
        this.attempts.get(question.number) ?? [],
        this.outcome?.questions[question.number] ?? null,
      );
    }
    this.foot.update({
      isDone: stage === "done",
      hasBegun: this.progress.isStarted,
      isRunning: this.allRuns.some((run) => run.runId !== null && !run.isOver),
    });
    for (const picture of this.pictures) picture.update(this.allRuns, this.isRevealed);
  }

  updateStart() {
    const again = this.againText();
    const isWanted = this.progress.isStarted && !again;
    show(this.start, !isWanted);
    setText(this.start, again || `Start ${RUN_COUNTS[this.runs.length]}`);
    setText(this.startNote, isWanted ? "" : "Real training on this machine, one run after the other.");
    const { obstacles, way } = this.lesson;
    this.start.disabled = obstacles.length > 0 && !way;
  }

  /** The label of the button that repeats runs; empty if no run needs it. */
  againText() {
    if (this.runs.some((run) => run.isGone)) return "Repeat the deleted runs";
    const isOver = this.runs.every((run) => run.runId === null || run.isOver);
    return isOver && this.runs.some((run) => run.isSpoilt)
      ? "Repeat the runs that did not end as expected"
      : "";
  }

  /** Shows the result of the prediction, once per comparison. */
  reveal() {
    show(this.see, this.lesson.see.length > 0);
    if (this.outcome === null || this.revealed === this.outcome) return;
    this.revealed = this.outcome;
    const { run, curve, axis, smoothing } = this.lesson.prediction;
    const trace = curve ? this.runs[run].traceOf(curve, { axis, smoothing }) : null;
    this.prediction.reveal(trace, this.outcome.prediction);
    this.findings.forEach((finding, index) => finding.update(this.outcome.pictures[index]));
  }

  /** Restarts the lesson. Its runs remain in the list of runs, unless `withRuns` deletes them. */
  async reset(withRuns) {
    const runIds = this.allRuns.filter((run) => run.runId !== null && !run.isGone).map((run) => run.runId);
    try {
      if (withRuns && runIds.length > 0) await callEndpoint("delete_runs", runIds);
      await forgetProgress(this.lesson.name);
    } catch (error) {
      showError(error.message);
      return;
    }
    window.location.assign(lessonPage(this.lesson.name));
  }

  keep() {
    keepProgress(this.lesson.name, this.progress);
  }

  close() {
    this.isClosed = true;
    this.endReading();
    this.endTheme();
    for (const picture of this.pictures) picture.close?.();
  }
}
