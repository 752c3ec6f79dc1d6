// The lab report dialog: the choice of lessons and runs, the name, the download.

import { person } from "../../auth/person.js";
import { openDialog, showError, showMessage } from "../../shared/dialog.js";
import { el, setText, show } from "../../shared/dom.js";
import { ago } from "../../shared/format.js";
import { address, fetchJson, PlainError, posted } from "../../shared/net.js";
import { progressName, progressOf, progressText } from "../progress.js";
import { collapsed, field, paragraph, textButton } from "../../shared/widgets.js";

const MAX_NAME = 120;
const MAX_RUNS_OFFERED = 100;
// Maximum number of runs per question in a report: the latest ones.
const MAX_ATTEMPTS = 6;

/** The button on the page of all lessons. */
export function reportButton() {
  return textButton("Lab report", () => openReportDialog(null));
}

/**
 * Asks for the content of the report and downloads it.
 * @param {string | null} lesson the lesson that is selected initially; null for all started ones
 */
export async function openReportDialog(lesson) {
  try {
    const [{ lessons }, inCode, { rows }, who] = await Promise.all([
      fetchJson(address("live/learn")),
      fetchJson(address("live/learn/code")),
      fetchJson(address("live/runs?since=-1")),
      person(),
    ]);
    const choice = new ReportChoice(lessons, inCode.lessons, rows, lesson, who.name);
    await openDialog({
      title: "Lab report",
      content: choice.element,
      confirm: "Download the report",
      onConfirm: () => choice.download(),
    });
  } catch (error) {
    showError(error.message);
  }
}

class ReportChoice {
  constructor(lessons, inCode, rows, picked, name) {
    this.name = el("input", { type: "text", maxlength: MAX_NAME, value: name, autocomplete: "off" });
    const begun = lessons.filter(({ name: each }) => progressOf(each).isLocked);
    this.lessons = begun.map(({ name: each, title }) =>
      box(each, title, progressText(progressOf(each)), picked === null || picked === each),
    );
    const written = inCode.filter(({ name: each }) => progressOf(progressName(each)).isStarted);
    this.inCode = written.map(({ name: each, title }) =>
      box(
        each,
        title,
        progressOf(progressName(each)).isDone ? "done" : "tried",
        picked === null || picked === each,
      ),
    );
    const names = [
      ...begun.map(({ name: each }) => each),
      ...written.map(({ name: each }) => progressName(each)),
    ];
    const ofLessons = new Set(names.flatMap((each) => runsOf(progressOf(each))));
    const others = rows.filter(({ run_id: runId }) => !ofLessons.has(runId)).slice(0, MAX_RUNS_OFFERED);
    this.runs = others.map((row) =>
      box(row.run_id, row.name, `${row.state}, ${ago(row.created_unix_s)}`, false),
    );
    this.numRuns = el("span", {}, "");
    const runs = el("div", { class: "ddp-report-runs" }, this.runs);
    runs.addEventListener("change", () => this.count());
    const fold = collapsed("ddp-report-others", ["Other runs", this.numRuns], runs);
    show(fold, this.runs.length > 0);
    this.element = el(
      "div",
      { class: "ddp-fields ddp-report" },
      paragraph(
        "hint",
        "One HTML file to read, print and hand in, with your predictions, the results, your answers, and the runs with their curves. It opens offline.",
      ),
      field("Your name (optional)", this.name),
      this.lessonPart(),
      fold,
    );
  }

  lessonPart() {
    if (this.lessons.length + this.inCode.length === 0) {
      return el("p", {}, "No lesson has been started here yet: lock a prediction to report it.");
    }
    return el(
      "fieldset",
      { class: "ddp-report-lessons" },
      el("legend", {}, "Lessons"),
      this.lessons,
      this.inCode,
    );
  }

  count() {
    const num = chosen(this.runs).length;
    setText(this.numRuns, num > 0 ? ` (${num})` : "");
  }

  async download() {
    const lessons = chosen(this.lessons);
    const inCode = chosen(this.inCode);
    const runs = chosen(this.runs);
    if (lessons.length + inCode.length + runs.length === 0) throw new PlainError("Choose a lesson or a run.");
    const body = {
      name: this.name.value.trim(),
      lessons: lessons.map(doneIn),
      code_lessons: inCode.map(writtenIn),
      runs,
    };
    save(await made(body));
    showMessage("The lab report was downloaded.");
  }
}

/** A labelled checkbox; `dataset.value` is its value. */
function box(value, text, note, isChecked) {
  return el(
    "label",
    { class: "ddp-report-box", "data-value": value },
    el("input", { type: "checkbox", checked: isChecked }),
    el("span", {}, text),
    el("span", { class: "ddp-hint" }, note),
  );
}

function chosen(boxes) {
  return boxes.filter((each) => each.querySelector("input").checked).map((each) => each.dataset.value);
}

/** The runs of a lesson, including attempts. */
function runsOf({ runs, attempts }) {
  const tried = Object.values(attempts)
    .flat()
    .map(({ runId }) => runId);
  return [...runs.filter(Boolean), ...tried];
}

/** The work in a lesson, in the format of the server. */
function doneIn(lesson) {
  const { prediction, isLocked, runs, attempts, answers } = progressOf(lesson);
  const numbers = Object.keys(answers).map(Number);
  return {
    lesson,
    prediction: isLocked ? prediction : null,
    runs,
    attempts: Object.entries(attempts).flatMap(([question, tried]) =>
      tried
        .slice(-MAX_ATTEMPTS)
        .map(({ choice, runId }) => ({ question: Number(question), choice, run_id: runId })),
    ),
    answers: Array.from({ length: Math.max(-1, ...numbers) + 1 }, (_, number) => answers[number] ?? null),
  };
}

/** The work in a lesson in code, in the format of the server. */
function writtenIn(lesson) {
  const { runs, numTries, isSolutionShown } = progressOf(progressName(lesson));
  return { lesson, run_id: runs.at(-1), num_tries: numTries, is_solution_shown: isSolutionShown };
}

/** Requests the report; rejects with a PlainError. */
async function made(body) {
  let response;
  try {
    response = await fetch(address("live/learn/report"), posted(body));
    if (response.ok) {
      const [, name] = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "") ?? [];
      return { blob: await response.blob(), name: name ?? "lab-report.html" };
    }
  } catch {
    throw new PlainError("The report is incomplete: try again.");
  }
  const { detail } = await response.json().catch(() => ({}));
  throw new PlainError(typeof detail === "string" ? detail : `The server answered ${response.status}.`);
}

function save({ blob, name }) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
