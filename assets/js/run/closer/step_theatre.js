// Step theatre: plays what every rank did in a recorded step, on a common time axis.

import { el, setText } from "../../shared/dom.js";
import { count, shortTime } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { bordersOf, doingAt, lanesOf, PART_WORDS } from "./theatre/lanes.js";
import { LanePicture, MOST_RANKS } from "./theatre/lane_picture.js";
import { bucketTable, clockWords, overlapWords, rankTable } from "./theatre/step_numbers.js";
import { Theatre } from "./theatre/theatre.js";

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
 * Creates the instrument for a run.
 * @param {string} runId
 * @param {any} summary
 */
export function makeStepTheatre(runId, summary) {
  return new StepTheatre(runId, summary);
}

class StepTheatre extends Theatre {
  constructor(runId, summary) {
    super(runId, summary, {
      name: "step-theatre",
      title: "Step theatre: what every rank does in one step",
      isOffered: true,
      seconds: PLAYS_FOR_S,
      picture: new LanePicture(),
      onRecording: () => this.showRecording(),
      onMove: (share, isPlaying) => this.moveTo(share, isPlaying),
      onResize: () => this.draw(),
    });
    this.step = 0;
    this.lanes = null;
    this.layOut();
  }

  layOut() {
    this.legend = el("p", { class: "ddp-legend" });
    this.now = el("dl", { class: "ddp-theatre-now" });
    this.moment = el("p", { class: "ddp-theatre-moment" });
    this.overlap = el("strong", {});
    this.overlapWords = el("span", {});
    this.clock = el("p", { class: "ddp-hint" });
    this.missing = el("ul", { class: "ddp-hint ddp-theatre-missing" });
    this.arrange(
      [
        "A ",
        term("recording"),
        " shows when each rank fetches data, computes and averages gradients. It is measured on this run.",
      ],
      [
        this.bar("Step", (index) => this.chooseStep(index)),
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
      ],
    );
  }

  showRecording() {
    const { recording } = this;
    const steps = recording.ranks[0].steps.map(({ step }) => step);
    this.choice.replaceChildren(...steps.map((step, index) => el("option", { value: index }, count(step))));
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
    // The first recorded step begins in the middle of earlier work: show the second one if there is one.
    this.chooseStep(Math.min(1, steps.length - 1));
  }

  chooseStep(index) {
    this.step = index;
    this.choice.value = String(index);
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
    const { width, rem } = this.room;
    if (!this.lanes || width === 0) return;
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
    // No announcements while playing: screen readers read the texts when the player is paused.
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
    said.unshift(`${recording.ended_early} Fewer steps were recorded than requested.`);
  }
  if (recording.ranks.length > MOST_RANKS) {
    said.push(`The first ${MOST_RANKS} ranks are drawn; the table has all ${count(recording.ranks.length)}.`);
  }
  return said;
}

/** A sample of each kind of block in the picture. */
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
