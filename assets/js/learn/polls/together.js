// A lesson that a class does together: the prediction goes to the poll, and the runs come from it.

import { setText, show } from "../../shared/dom.js";
import { LessonView } from "../lesson.js";

export class LessonTogether extends LessonView {
  /**
   * @param {any} lesson as the server describes it
   * @param {import("./followed.js").FollowedPoll} poll
   */
  constructor(lesson, poll) {
    super(lesson);
    this.poll = poll;
    // What the lesson does to the runs of a poll is done by the server.
    for (const run of this.runs) run.commands = [];
    this.element.firstElementChild?.append(poll.element);
    // They are the teacher's.
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

  /** The runs that everybody watches. */
  takeRuns(runIds) {
    this.progress.runs = this.runs.map(({ runId, index }) => runId ?? runIds[index] ?? null);
    if (this.adopt()) {
      // Whoever has them all goes on alone; until then nobody but the poll starts the next.
      this.progress.isStarted = !this.progress.runs.includes(null);
      this.keep();
      this.read().catch((error) => this.heard(error));
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
