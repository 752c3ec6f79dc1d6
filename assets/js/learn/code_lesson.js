// A lesson in code: the task, an editor with the script, Run, and a check of what the run did.

import { Editor } from "../script/editor.js";
import { el, section, setText, show, showText } from "../shared/dom.js";
import { address, callEndpoint, fetchJson, runPage, askEvery } from "../shared/net.js";
import { ConnectionNote, StatePill, buttonRow, collapsed, textButton } from "../shared/widgets.js";
import { keepProgress, progressName, progressOf } from "./progress.js";
import { openReportDialog } from "./report/report.js";
import { LessonEnd, lessonHead } from "./lesson.js";
import { blocks, inlines } from "./text.js";

const READ_EVERY_MS = 700;
const KEEP_AFTER_MS = 800;
// After this number of tries the solution is offered next to Run.
const TRIES_TO_SOLUTION = 2;
const MARKS = { passed: "✓", failed: "✗", open: "·" };

/** The URL of a lesson in code. */
export function codeLessonPage(name) {
  return address("learn", { code: name });
}

export class CodeLessonView {
  /** @param {any} lesson the server's description */
  constructor(lesson) {
    document.title = `${lesson.title} · Rankscope`;
    this.lesson = lesson;
    this.progress = progressOf(progressName(lesson.name));
    /** @type {any} The result of the newest run. */
    this.result = null;
    /** The number of hints that are shown. */
    this.numHints = 1;
    this.isStarting = false;
    this.timer = 0;
    this.editor = new Editor({ label: "The script", onChange: () => this.keepSoon() });
    this.editor.text = this.progress.code ?? lesson.script;
    this.run = textButton("Run on two CPU ranks", () => this.start(), "main");
    this.run.disabled = lesson.refused !== null;
    this.reset = textButton("Start over with the first script", () => this.replace(lesson.script));
    this.askSolution = textButton("Show the solution", () => this.showSolution());
    this.pill = new StatePill();
    this.state = el("p", { class: "ddp-buttons", role: "status", hidden: true }, this.pill);
    this.link = el("a", {}, "Open the run");
    this.state.append(this.link);
    this.checks = el("ol", { class: "ddp-code-checks" });
    this.outcome = el("p", { class: "ddp-lesson-outcome", role: "status" });
    this.hints = el("ul", { class: "ddp-code-hints" });
    this.moreHints = textButton("Another hint", () => this.nextHint());
    this.note = new ConnectionNote();
    this.problem = el("p", { class: "ddp-problem", role: "alert", hidden: true });
    this.solution = section("The solution", "lesson-solution", this.solutionBody());
    const { name, next } = lesson;
    this.foot = new LessonEnd(next && codeLessonPage(next), () => openReportDialog(name));
    this.element = this.layOut();
    this.update();
    if (this.progress.isSolutionShown || this.progress.isDone) this.loadSolution();
    this.endReading = askEvery(READ_EVERY_MS, () => this.read(), (error) => this.note.heard(error));
  } // prettier-ignore

  get runId() {
    return this.progress.runs.at(-1) ?? null;
  }

  layOut() {
    const { task, refused } = this.lesson;
    return el(
      "div",
      { class: "ddp ddp-learn-page ddp-lesson" },
      lessonHead(this.lesson),
      refused ? el("p", { class: "ddp-problem", role: "alert" }, `No script can be run: ${refused}.`) : null,
      section("Task", "lesson-task", el("div", { class: "ddp-lesson-text" }, blocks(task))),
      el(
        "div",
        { class: "ddp-code-columns" },
        section("Script", "lesson-script", this.editor, buttonRow(this.run, this.reset), this.problem),
        section("What the run showed", "lesson-result", this.state, this.note, this.outcome, this.checks, this.hints, buttonRow(this.moreHints, this.askSolution)),
      ),
      this.solution,
      this.foot,
    ); // prettier-ignore
  }

  solutionBody() {
    this.solutionCode = el("pre", { class: "ddp-lesson-code", tabindex: 0 });
    this.explain = el("div", { class: "ddp-lesson-text" });
    const use = textButton("Put it into the editor", () => this.replace(this.solutionCode.textContent));
    return [this.explain, collapsed(null, "One way to write it", this.solutionCode, use)];
  }

  keepSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), KEEP_AFTER_MS);
  }

  keep() {
    clearTimeout(this.timer);
    this.progress.code = this.editor.text;
    keepProgress(progressName(this.lesson.name), this.progress);
  }

  replace(text) {
    this.editor.text = text;
    this.keepSoon();
  }

  async start() {
    show(this.problem, false);
    this.isStarting = true;
    this.update();
    try {
      const { run_id: runId } = await callEndpoint("start_code_lesson", this.lesson.name, this.editor.text);
      this.progress.isStarted = true;
      // A new round: the list of runs is replaced, not joined with the stored one.
      this.progress.round += 1;
      this.progress.runs = [runId];
      this.progress.numTries += 1;
      this.result = null;
      this.keep();
    } catch (error) {
      showText(this.problem, error.message);
    }
    this.isStarting = false;
    this.update();
  }

  /** Reads the result of the newest run until the run has ended. */
  async read() {
    const { runId } = this;
    if (runId === null || this.result?.is_over) return;
    let result;
    try {
      result = await fetchJson(address("live/learn/code/result", { name: this.lesson.name, run: runId }));
    } catch (error) {
      if (error.status !== 404) throw error;
      result = { is_over: true, is_gone: true, state: "", checks: [], hints: [] };
    }
    if (runId !== this.runId) return;
    this.take(result);
  }

  take(result) {
    const isNew = result.is_over && !this.result?.is_over;
    this.result = result;
    if (isNew && !result.is_gone) {
      this.numHints = 1;
      this.draw();
      if (result.is_passed && !this.progress.isDone) {
        this.progress.isDone = true;
        this.keep();
      }
      if (this.progress.isDone) this.loadSolution();
    }
    this.update();
  }

  draw() {
    const { checks, hints, is_passed: isPassed } = this.result;
    this.checks.replaceChildren(
      ...checks.map(({ label, outcome, words: text }) =>
        el(
          "li",
          { "data-outcome": outcome },
          el("span", { class: "ddp-code-mark", "aria-label": outcome }, MARKS[outcome]),
          el("span", {}, label),
          text ? el("p", {}, text) : null,
        ),
      ),
    );
    setText(this.outcome, isPassed ? "Right: the run did what the task asks for." : "Not yet.");
    this.hints.replaceChildren(...hints.map((hint) => el("li", {}, inlines(hint))));
  }

  nextHint() {
    this.numHints += 1;
    this.update();
  }

  async showSolution() {
    this.progress.isSolutionShown = true;
    this.keep();
    await this.loadSolution();
    this.update();
    this.solution.querySelector("details").open = true;
    this.solution.scrollIntoView({ block: "start" });
  }

  async loadSolution() {
    if (this.solutionCode.textContent) return;
    const where = address("live/learn/code/solution", { name: this.lesson.name });
    const { solution, explain } = await fetchJson(where);
    this.solutionCode.textContent = solution;
    this.explain.replaceChildren(...blocks(explain));
    this.update();
  }

  update() {
    const { result, progress, runId } = this;
    const isOver = result?.is_over === true;
    const isRunning = this.isStarting || (runId !== null && !isOver);
    const isShown = isOver && !result.is_gone;
    this.run.disabled = isRunning || this.lesson.refused !== null;
    show(this.state, runId !== null && !result?.is_gone);
    if (result?.state) this.pill.update(result.state);
    if (runId !== null) this.link.href = runPage(runId);
    show(this.checks, isShown);
    if (!isShown) setText(this.outcome, isRunning ? "The script is running." : "Run the script first.");
    this.updateHints(isShown ? result.hints.length : 0);
    setText(
      this.askSolution,
      progress.numTries < TRIES_TO_SOLUTION ? "Show the solution already" : "Show the solution",
    );
    this.updateEnd();
  }

  updateEnd() {
    const { isDone, isStarted } = this.progress;
    const hasSolution = this.solutionCode.textContent !== "";
    show(this.askSolution, !hasSolution);
    show(this.solution, hasSolution);
    this.foot.update({ isDone, hasBegun: isStarted });
    show(this.foot.element, isStarted);
  }

  /** Shows as many hints as were asked for. */
  updateHints(number) {
    [...this.hints.children].forEach((hint, index) => show(hint, index < this.numHints));
    show(this.hints, number > 0);
    show(this.moreHints, number > this.numHints);
  }

  close() {
    this.keep();
    this.endReading();
  }
}
