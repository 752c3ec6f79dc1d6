// Step theatre: plays what every rank did in a recorded step, and shows its measurements as text and tables.

import { el, setText } from "../../shared/dom.js";
import { UNKNOWN, bytes, count, percent, shortTime } from "../../shared/format.js";
import { term } from "../../shared/terms.js";
import { LanePicture, MOST_RANKS, PART_WORDS, bordersOf, activityAt, lanesOf } from "./lanes.js";
import { Theatre, scrollingTable } from "./theatre.js";
import { collapsed, legendEntry, offerOptions, paragraph, tableRow } from "../../shared/widgets.js";

const COLUMNS = [
  ["data_s", "data"],
  ["forward_s", "forward"],
  ["backward_s", "backward, total"],
  ["both_s", "forward and backward"],
  ["all_reduce_s", "of it all-reduce"],
  ["hidden_s", "of that hidden"],
  ["waited_s", "of that waiting"],
  ["optimizer_s", "optimizer"],
  ["step_s", "the whole step"],
];
const NAMES_SHOWN = 4;

/** The overlap of communication and computation, as a percentage and a sentence. */
function overlapText({ numbers, is_blocking: isBlocking, world_size: worldSize }) {
  if (typeof numbers.overlap !== "number") {
    return [UNKNOWN, worldSize === 1 ? "There is one rank: nothing is averaged." : "Not measured here."];
  }
  const text = isBlocking
    ? "With shared memory each bucket is averaged immediately by the computing thread: backward waits during this time."
    : "This share of the all-reduce time was hidden: it ran during backward. The rest makes the step longer.";
  return [percent(numbers.overlap, 0), text];
}

/** How well the ranks' clocks agree, with the error in seconds or less. */
function clockText({ clock, world_size: worldSize }) {
  if (worldSize === 1) return "One rank, one clock.";
  const how =
    clock.method === "one clock"
      ? "All ranks run on one machine and read the same clock: the skew is 0."
      : `The clocks of the machines were compared by pings. Times of any two ranks can be compared to within ${shortTime(clock.error_s)}.`;
  return how + checkText(clock);
}

function checkText({ num_checked: number, worst_contradiction_s: worst }) {
  if (number === 0) return "";
  return worst > 0
    ? ` Of ${count(number)} all-reduces one contradicts that by ${shortTime(worst)}.`
    : ` Checked by ${count(number)} all-reduces: none ends on one rank before it has begun on all.`;
}

/** The mean duration of each part, a row per rank; columns without measurements are omitted. */
function rankTable({ numbers, num_steps: numSteps }) {
  const columns = COLUMNS.filter(([name]) => numbers.ranks.some((rank) => typeof rank[name] === "number"));
  const heads = ["rank", ...columns.map(([, text]) => text)];
  const cells = (rank) => columns.map(([name]) => shortTime(rank[name]));
  const rows = numbers.ranks.map((rank) => tableRow(rank.rank, cells(rank)));
  const mean = numSteps === 1 ? "" : `, mean of ${count(numSteps)} steps`;
  return scrollingTable(`Seconds of each part${mean}`, heads, rows);
}

/** The buckets: the gradients in each, and their bytes. */
function bucketTable({ buckets }) {
  const total = buckets.reduce((sum, bucket) => sum + bucket.bytes, 0);
  const rows = buckets.map((bucket, number) =>
    tableRow(number, [bytes(bucket.bytes), namesOf(bucket.parameters)]),
  );
  const text = ` is averaged in one all-reduce; together ${bytes(total)}, the gradients of all parameters. Backward starts at the last layers, so they are in the first bucket.`;
  const heads = ["bucket", "bytes", "the gradients of"];
  const table = scrollingTable("Buckets", heads, rows, "ddp-theatre-words");
  return el("div", {}, paragraph("hint", "Each ", term("bucket"), text), table);
}

function namesOf(parameters) {
  const named = ({ name, bytes: size }) => `${name} (${bytes(size)})`;
  if (parameters.length <= NAMES_SHOWN) return parameters.map(named).join(", ");
  const first = parameters.slice(0, NAMES_SHOWN).map(named).join(", ");
  const rest = parameters.slice(NAMES_SHOWN).map(named).join(", ");
  return [first, collapsed(null, `and ${count(parameters.length - NAMES_SHOWN)} more`, rest)];
}

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

export class StepTheatre extends Theatre {
  constructor(runId, summary) {
    super(runId, summary, {
      name: "step-theatre",
      title: "Step theatre: what every rank does in one step",
      isOffered: true,
      seconds: PLAYS_FOR_S,
      picture: new LanePicture(),
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
    this.overlapText = el("span", {});
    this.clock = paragraph("hint");
    this.missing = el("ul", { class: "ddp-hint ddp-theatre-missing" });
    const text =
      " shows when each rank fetches data, computes and averages gradients. It is measured on this run.";
    const bar = this.bar("Step", (index) => this.chooseStep(index));
    const name = el("span", {}, term("overlap", "Overlap"), ": ");
    const overlap = paragraph("theatre-overlap", name, this.overlap, this.overlapText);
    const below = [this.moment, this.now, overlap, this.clock, this.missing, this.tables];
    this.arrange(["A ", term("recording"), text], [bar, this.legend, this.stage, ...below]);
  }

  /** @override */
  showRecording() {
    const { recording } = this;
    const steps = recording.ranks[0].steps.map(({ step }) => step);
    offerOptions(
      this.choice,
      steps.map((step, index) => [index, count(step)]),
    );
    const [share, text] = overlapText(recording);
    setText(this.overlap, share);
    setText(this.overlapText, ` ${text}`);
    setText(this.clock, clockText(recording));
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
    this.player.borders = bordersOf(this.lanes).map((moment) => moment / length);
    this.now.replaceChildren(
      ...this.lanes.ranks
        .slice(0, MOST_RANKS)
        .flatMap(({ rank }) => [el("dt", {}, `rank ${rank}`), el("dd", {})]),
    );
    this.draw();
    this.player.goTo(0);
  }

  /** @override */
  draw() {
    const { width, rem } = this.room;
    if (!this.lanes || width === 0) return;
    const { ranks, length } = this.lanes;
    const label = `Lanes of ${count(ranks.length)} ranks over ${shortTime(length)}; the tables below have the same numbers`;
    this.picture.draw(this.lanes, width, rem, label);
    this.moveTo(this.player.share, this.player.isPlaying);
  }

  /** @override */
  moveTo(share, isPlaying) {
    if (!this.lanes) return;
    const { ranks, length } = this.lanes;
    const moment = share * length;
    this.picture.moveTo(moment);
    // No announcements while playing: screen readers read the texts when the player is paused.
    this.now.setAttribute("aria-live", isPlaying ? "off" : "polite");
    setText(this.moment, `After ${shortTime(moment)} of ${shortTime(length)}:`);
    const places = this.now.querySelectorAll("dd");
    const doing = ranks.slice(0, places.length).map((rank) => activityAt(rank, moment));
    doing.forEach((text, index) => setText(places[index], text));
    const all = doing.map((text, index) => `rank ${ranks[index].rank}: ${text}`).join("; ");
    this.player.say(`${shortTime(moment)}. ${all}`);
  }
}

function notShown(recording) {
  const notes = [...recording.not_measured];
  if (recording.ended_early) {
    notes.unshift(`${recording.ended_early} Fewer steps were recorded than requested.`);
  }
  if (recording.ranks.length > MOST_RANKS) {
    notes.push(
      `The first ${MOST_RANKS} ranks are drawn; the table has all ${count(recording.ranks.length)}.`,
    );
  }
  return notes;
}

/** A sample of each kind of block in the picture. */
function legend(recording) {
  const { ranks } = lanesOf(recording, 0);
  const drawn = new Set(
    ranks.flatMap(({ compute, collectives }) => [...compute, ...collectives].map(({ kind }) => kind)),
  );
  if (drawn.has("both")) drawn.add("backward");
  return LEGEND.filter(([kind]) => drawn.has(kind)).map(([kind, text]) =>
    legendEntry(
      `ddp-theatre-sample-${kind}`,
      kind === "backward" && drawn.has("both") ? PART_WORDS.both : text,
    ),
  );
}
