// A lesson followed in a poll: the prediction is sent to the poll, and the runs come from it.

import { setText, show } from "../../shared/dom.js";
import { LessonView } from "../lesson.js";

export class LessonTogether extends LessonView {
  /**
   * @param {any} lesson the server's description
   * @param {import("./followed.js").FollowedPoll} poll
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
