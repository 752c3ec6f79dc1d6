// The Learn page: all lessons, or the lesson that the URL names.

import { el, section, setText, show } from "../shared/dom.js";
import { address, fetchJson, lessonPage } from "../shared/net.js";
import { CodeLessonView, codeLessonPage } from "./code_lesson.js";
import { LessonView } from "./lesson.js";
import { joinedPoll, PollLessonView, PollTools } from "./polls/lesson.js";
import { PollView } from "./polls/view.js";
import { progressName, progressOf, progressText, readProgress, watchProgress } from "./progress.js";
import { paragraph } from "../shared/widgets.js";
import { reportButton } from "./report/report.js";

/** Fills an element with the lessons; returns a function that unmounts it. */
export function mountLearn(root) {
  const query = new URLSearchParams(window.location.search);
  const [name, pollId, code] = [query.get("lesson"), query.get("poll"), query.get("code")];
  document.title = "Learn · Rankscope";
  const waiting = el("p", { class: "ddp-loading", role: "status" }, "Reading the lessons …");
  const page = el("div", { class: "ddp ddp-learn-page" }, waiting);
  root.replaceChildren(page);
  let view = null;
  let isOver = false;
  const load = async () => {
    const made =
      code === null ? await viewOf(name, pollId, query.has("projector")) : await codeView(code);
    if (isOver) return made.close();
    view = made;
    root.replaceChildren(view.element);
  }; // prettier-ignore
  load().catch((error) => {
    if (isOver) return;
    console.error(error);
    setText(waiting, error.message);
    if (name !== null || code !== null) page.append(el("a", { href: address("learn") }, "← All lessons"));
  });
  return () => {
    isOver = true;
    view?.close();
  };
}

/** Returns the list of lessons, a lesson, a lesson followed in a poll, or the teacher's view of a poll. */
async function viewOf(name, pollId, isProjector) {
  if (name === null && pollId !== null) return PollView.of(pollId, isProjector);
  const where = name === null ? address("live/learn") : address("live/learn/lesson", { name });
  const [found, inCode] = await Promise.all([
    fetchJson(where),
    name === null ? fetchJson(address("live/learn/code")) : null,
    readProgress(),
  ]);
  if (name === null) return new ListView(found, inCode);
  const poll = await joinedPoll(name, pollId);
  const view = poll ? new PollLessonView(found, poll) : withPolls(new LessonView(found), name);
  return withNews(view, name);
}

async function codeView(name) {
  const where = address("live/learn/code/lesson", { name });
  const [found] = await Promise.all([fetchJson(where), readProgress()]);
  return new CodeLessonView(found);
}

/** Adds the polls on a lesson to its view. */
function withPolls(view, name) {
  const tools = new PollTools(name);
  view.element.firstElementChild.append(tools.element);
  return alsoClosing(view, () => tools.close());
}

/** Reloads a lesson after the same user has continued it elsewhere. */
function withNews(view, name) {
  return alsoClosing(
    view,
    watchProgress(name, view.progress, () => window.location.reload()),
  );
}

function alsoClosing(view, end) {
  const close = () => view.close();
  return { element: view.element, progress: view.progress, close: () => [end(), close()] };
}

class ListView {
  constructor({ lessons, broken }, inCode) {
    this.pollTools = new PollTools(null);
    const cards = lessons.map((lesson, index) => {
      const progress = progressOf(lesson.name);
      return card(lesson, index + 1, lessonPage(lesson.name), progress.isDone, progressText(progress));
    });
    const codeCards = inCode.lessons.map((lesson, index) => {
      const { isDone, isStarted } = progressOf(progressName(lesson.name));
      const number = lessons.length + index + 1;
      return card(lesson, number, codeLessonPage(lesson.name), isDone, codeText(isDone, isStarted));
    });
    const allBroken = [...broken, ...inCode.broken];
    const faults = section(
      "Files that are not valid lessons",
      "lessons-broken",
      el(
        "ul",
        {},
        allBroken.map(({ file, words: text }) => el("li", {}, el("strong", {}, file), `, ${text}`)),
      ),
    );
    show(faults, allBroken.length > 0);
    this.element = el(
      "div",
      { class: "ddp ddp-learn-page" },
      el("div", { class: "ddp-learn-title" }, el("h1", {}, "Learn"), reportButton()),
      paragraph(
        "caption",
        "Make a prediction, start real runs on this machine, and see what happens and why.",
      ),
      this.pollTools,
      el("ol", { class: "ddp-lessons" }, cards),
      el("h2", {}, "Lessons in code"),
      paragraph(
        "caption",
        "Each is a script with something missing or wrong. Change it and run it: what the run did is checked, not how the script is written.",
      ),
      el("ol", { class: "ddp-lessons" }, codeCards),
      faults,
    );
  }

  close() {
    this.pollTools.close();
  }
}

function codeText(isDone, isStarted) {
  if (isDone) return "done";
  return isStarted ? "tried" : "";
}

function card({ title, summary, minutes }, number, href, isDone, text) {
  return el(
    "li",
    { class: "ddp-card ddp-lesson-card", "data-done": isDone },
    el("h2", {}, el("a", { href }, `${number}. ${title}`)),
    el("p", {}, summary),
    paragraph("hint", [`${minutes} min`, text].filter(Boolean).join(" · ")),
  );
}
