// Step theatre: what every rank did in a recorded step, on one clock, to play and to step through.

import { el, freeId, guarded, setText, show } from "../../shared/dom.js";
import { count, shortTime } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { bordersOf, doingAt, lanesOf, PART_WORDS } from "./theatre/lanes.js";
import { LanePicture, MOST_RANKS } from "./theatre/lane_picture.js";
import { Player } from "./theatre/player.js";
import { Recordings } from "./theatre/recordings.js";
import { bucketTable, clockWords, overlapWords, rankTable } from "./theatre/step_numbers.js";

const PLAYS_FOR_S = 10;
const LEGEND = [
  ["data", "data"],
  ["forward", "forward"],
  ["backward", "backward"],
  ["optimizer", "optimizer"],
  ["reduce", "all-reduce of a bucket"],
  ["collective", "collective"],
  ["wait", "waiting for other ranks"],
];

/**
 * Makes the instrument for a run.
 * @param {string} runId
 * @param {any} summary
 */
export function makeStepTheatre(runId, summary) {
  return new StepTheatre(runId, summary);
}

class StepTheatre {
  constructor(runId, summary) {
    this.name = "step-theatre";
    this.title = "Step theatre: what every rank does in one step";
    this.isOffered = true;
    this.recording = null;
    this.problem = "";
    this.step = 0;
    this.recordings = new Recordings(runId, summary, {
      name: "Step theatre",
      onChange: (recording, problem) => this.show(recording, problem),
    });
    this.player = new Player({
      name: "Step theatre",
      seconds: PLAYS_FOR_S,
      onMove: (share, isPlaying) => this.moveTo(share, isPlaying),
    });
    this.picture = new LanePicture();
    this.stage = el("div", { class: "ddp-theatre-stage" }, this.picture.element);
    this.nothing = el("p", { class: "ddp-empty" }, "Looking for recordings …");
    this.layOut();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.stage);
  }

  layOut() {
    const id = freeId("ddp-theatre-step");
    this.stepSelect = el("select", {
      id,
      class: "ddp-theatre-step",
      onchange: () => this.chooseStep(Number(this.stepSelect.value)),
    });
    this.legend = el("p", { class: "ddp-legend" });
    this.now = el("dl", { class: "ddp-theatre-now" });
    this.moment = el("p", { class: "ddp-theatre-moment" });
    this.overlap = el("strong", {});
    this.overlapWords = el("span", {});
    this.clock = el("p", { class: "ddp-hint" });
    this.missing = el("ul", { class: "ddp-hint ddp-theatre-missing" });
    this.tables = el("div", { class: "ddp-theatre-tables" });
    this.shown = el(
      "div",
      { class: "ddp-theatre-shown", hidden: true },
      el(
        "div",
        { class: "ddp-theatre-bar" },
        el("label", { class: "ddp-from", for: id }, "Step"),
        this.stepSelect,
        this.player.element,
      ),
      this.legend,
      this.stage,
      this.moment,
      this.now,
      el(
        "p",
        { class: "ddp-theatre-overlap" },
        el("span", {}, term("overlap", "Overlap"), ": "),
        this.overlap,
        this.overlapWords,
      ),
      this.clock,
      this.missing,
      this.tables,
    );
    this.element = el(
      "div",
      { class: "ddp-theatre" },
      el(
        "p",
        { class: "ddp-caption" },
        "A ",
        term("recording"),
        " shows when each rank fetches data, computes and averages gradients. It is measured on this run.",
      ),
      this.recordings.element,
      this.nothing,
      this.shown,
    );
  }

  open() {
    this.recordings.open();
  }

  update(payload) {
    this.recordings.update(payload);
    if (!this.recording && this.recordings.isOpen) this.sayNothing();
  }

  close() {
    this.player.close();
    this.recordings.close();
    this.resized.disconnect();
  }

  show(recording, problem) {
    this.recording = recording;
    show(this.shown, recording !== null);
    show(this.nothing, recording === null);
    this.problem = problem;
    if (recording === null) this.sayNothing();
    else guarded(this.element, () => this.showRecording());
  }

  sayNothing() {
    setText(this.nothing, this.problem || this.recordings.howTo());
  }

  showRecording() {
    const { recording } = this;
    const steps = recording.ranks[0].steps.map(({ step }) => step);
    this.stepSelect.replaceChildren(
      ...steps.map((step, index) => el("option", { value: index }, count(step))),
    );
    const [share, words] = overlapWords(recording);
    setText(this.overlap, share);
    setText(this.overlapWords, ` ${words}`);
    setText(this.clock, clockWords(recording));
    this.missing.replaceChildren(...notShown(recording).map((sentence) => el("li", {}, sentence)));
    this.tables.replaceChildren(
      rankTable(recording),
      ...(recording.buckets.length > 0 ? [bucketTable(recording)] : []),
    );
    this.legend.replaceChildren(...legend(recording));
    // The first one has begun in the middle of whatever was before.
    this.chooseStep(Math.min(1, steps.length - 1));
  }

  chooseStep(index) {
    this.step = index;
    this.stepSelect.value = String(index);
    this.lanes = lanesOf(this.recording, index);
    const { length } = this.lanes;
    this.player.setBorders(bordersOf(this.lanes).map((moment) => moment / length));
    this.now.replaceChildren(
      ...this.lanes.ranks
        .slice(0, MOST_RANKS)
        .flatMap(({ rank }) => [el("dt", {}, `rank ${rank}`), el("dd", {})]),
    );
    this.draw();
    this.player.goTo(0);
  }

  draw() {
    const width = this.stage.clientWidth;
    if (!this.lanes || width === 0) return;
    const rem = Number.parseFloat(getComputedStyle(this.stage).fontSize);
    const { ranks, length } = this.lanes;
    const label = `Lanes of ${count(ranks.length)} ranks over ${shortTime(length)}; the tables below have the same numbers`;
    this.picture.draw(this.lanes, width, rem, label);
    this.moveTo(this.player.share, this.player.isPlaying);
  }

  moveTo(share, isPlaying) {
    if (!this.lanes) return;
    const { ranks, length } = this.lanes;
    const moment = share * length;
    this.picture.moveTo(moment);
    // What is written four hundred times is read by nobody: a screen reader hears of it when it stands still.
    this.now.setAttribute("aria-live", isPlaying ? "off" : "polite");
    setText(this.moment, `After ${shortTime(moment)} of ${shortTime(length)}:`);
    const places = this.now.querySelectorAll("dd");
    const doing = ranks.slice(0, places.length).map((rank) => doingAt(rank, moment));
    doing.forEach((words, index) => setText(places[index], words));
    const all = doing.map((words, index) => `rank ${ranks[index].rank}: ${words}`).join("; ");
    this.player.say(`${shortTime(moment)}. ${all}`);
  }
}

function notShown(recording) {
  const said = [...recording.not_measured];
  if (recording.ended_early) {
    said.unshift(`${recording.ended_early} So there are fewer steps than were asked for.`);
  }
  if (recording.ranks.length > MOST_RANKS) {
    said.push(`Drawn are the first ${MOST_RANKS} ranks; the table has all ${count(recording.ranks.length)}.`);
  }
  return said;
}

/** A sample of each kind of piece that is drawn. */
function legend(recording) {
  const { ranks } = lanesOf(recording, 0);
  const drawn = new Set(
    ranks.flatMap(({ compute, collectives }) => [...compute, ...collectives].map(({ kind }) => kind)),
  );
  if (drawn.has("both")) drawn.add("backward");
  return LEGEND.filter(([kind]) => drawn.has(kind)).map(([kind, words]) =>
    el(
      "span",
      {},
      el("i", { class: `ddp-part ddp-theatre-sample-${kind}`, "aria-hidden": "true" }),
      kind === "backward" && drawn.has("both") ? PART_WORDS.both : words,
    ),
  );
}
