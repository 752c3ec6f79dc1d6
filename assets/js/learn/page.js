// Learn: all lessons, or the one that the address names.

import { el, section, setText, show } from "../shared/dom.js";
import { address, fetchJson } from "../shared/net.js";
import { lessonPage } from "./foot.js";
import { LessonView } from "./lesson.js";
import { progressOf, progressWords } from "./progress.js";
import { reportButton } from "./report/report.js";

/** Fills an element with the lessons; returns a function that ends it. */
export function mountLearn(root) {
  const name = new URLSearchParams(window.location.search).get("lesson");
  document.title = "Learn · DDP, live";
  const waiting = el("p", { class: "ddp-loading", role: "status" }, "Reading the lessons …");
  const page = el("div", { class: "ddp ddp-learn-page" }, waiting);
  root.replaceChildren(page);
  let view = null;
  let isOver = false;
  const load = async () => {
    const found = await fetchJson(address(name === null ? "live/learn" : `live/learn/lesson?name=${encodeURIComponent(name)}`));
    if (isOver) return;
    view = name === null ? new ListView(found) : new LessonView(found);
    root.replaceChildren(view.element);
  }; // prettier-ignore
  load().catch((error) => {
    if (isOver) return;
    console.error(error);
    setText(waiting, error.message);
    if (name !== null) page.append(el("a", { href: address("learn") }, "← All lessons"));
  });
  return () => {
    isOver = true;
    view?.close();
  };
}

class ListView {
  constructor({ lessons, broken }) {
    const cards = lessons.map((lesson, index) => card(lesson, index + 1));
    const faults = section(
      "Files that are no lesson",
      "lessons-broken",
      el(
        "ul",
        {},
        broken.map(({ file, words }) => el("li", {}, el("strong", {}, file), `, ${words}`)),
      ),
    );
    show(faults, broken.length > 0);
    this.element = el(
      "div",
      { class: "ddp ddp-learn-page" },
      el("div", { class: "ddp-learn-title" }, el("h1", {}, "Learn"), reportButton()),
      el(
        "p",
        { class: "ddp-caption" },
        "Say what you expect, start real runs on this machine, and see what happens and why.",
      ),
      el("ol", { class: "ddp-lessons" }, cards),
      faults,
    );
  }

  close() {}
}

function card({ name, title, summary, minutes }, number) {
  const progress = progressOf(name);
  const words = progressWords(progress);
  return el(
    "li",
    { class: "ddp-card ddp-lesson-card", "data-done": progress.isDone },
    el("h2", {}, el("a", { href: lessonPage(name) }, `${number}. ${title}`)),
    el("p", {}, summary),
    el("p", { class: "ddp-hint" }, [`${minutes} min`, words].filter(Boolean).join(" · ")),
  );
}
