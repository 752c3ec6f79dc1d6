// The measurements of a recording as text and tables, with the same content as the lanes.

import { el } from "../../../shared/dom.js";
import { bytes, count, percent, shortTime, UNKNOWN } from "../../../shared/format.js";
import { term } from "../../../shared/terms.js";

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
export function overlapWords({ numbers, is_blocking: isBlocking, world_size: worldSize }) {
  if (typeof numbers.overlap !== "number") {
    return [UNKNOWN, worldSize === 1 ? "There is one rank: nothing is averaged." : "Not measured here."];
  }
  if (isBlocking) {
    return [
      percent(numbers.overlap, 0),
      "With shared memory each bucket is averaged immediately by the computing thread: backward waits during this time.",
    ];
  }
  return [
    percent(numbers.overlap, 0),
    "This share of the all-reduce time was hidden: it ran during backward. The rest makes the step longer.",
  ];
}

/** How well the ranks' clocks agree, with the error in seconds or less. */
export function clockWords({ clock, world_size: worldSize }) {
  if (worldSize === 1) return "One rank, one clock.";
  const how =
    clock.method === "one clock"
      ? "All ranks run on one machine and read the same clock: the skew is 0."
      : `The clocks of the machines were compared by pings. Times of any two ranks can be compared to within ${shortTime(clock.error_s)}.`;
  return how + checkWords(clock);
}

function checkWords({ num_checked: number, worst_contradiction_s: worst }) {
  if (number === 0) return "";
  return worst > 0
    ? ` Of ${count(number)} all-reduces one contradicts that by ${shortTime(worst)}.`
    : ` Checked by ${count(number)} all-reduces: none ends on one rank before it has begun on all.`;
}

/** The mean duration of each part, a row per rank; columns without measurements are omitted. */
export function rankTable({ numbers, num_steps: numSteps }) {
  const columns = COLUMNS.filter(([name]) => numbers.ranks.some((rank) => typeof rank[name] === "number"));
  const head = el(
    "tr",
    {},
    el("th", { scope: "col" }, "rank"),
    columns.map(([, words]) => el("th", { scope: "col" }, words)),
  );
  const rows = numbers.ranks.map((rank) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, String(rank.rank)),
      columns.map(([name]) => el("td", {}, shortTime(rank[name]))),
    ),
  );
  const caption =
    numSteps === 1 ? "Seconds of each part" : `Seconds of each part, mean of ${count(numSteps)} steps`;
  return table(caption, "ddp-theatre-table", head, rows);
}

/** The buckets: the gradients in each, and their bytes. */
export function bucketTable({ buckets }) {
  const total = buckets.reduce((sum, bucket) => sum + bucket.bytes, 0);
  const head = el(
    "tr",
    {},
    ["bucket", "bytes"].map((words) => el("th", { scope: "col" }, words)),
    el("th", { scope: "col", class: "ddp-theatre-names" }, "the gradients of"),
  );
  const rows = buckets.map((bucket, number) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, String(number)),
      el("td", {}, bytes(bucket.bytes)),
      el("td", { class: "ddp-theatre-names" }, namesOf(bucket.parameters)),
    ),
  );
  return el(
    "div",
    {},
    el(
      "p",
      { class: "ddp-hint" },
      "Each ",
      term("bucket"),
      ` is averaged in one all-reduce; together ${bytes(total)}, the gradients of all parameters. Backward starts at the last layers, so they are in the first bucket.`,
    ),
    table("Buckets", "ddp-theatre-table", head, rows),
  );
}

function namesOf(parameters) {
  const named = ({ name, bytes: size }) => `${name} (${bytes(size)})`;
  if (parameters.length <= NAMES_SHOWN) return parameters.map(named).join(", ");
  const first = parameters.slice(0, NAMES_SHOWN).map(named).join(", ");
  const rest = parameters.slice(NAMES_SHOWN).map(named).join(", ");
  return [
    first,
    el("details", {}, el("summary", {}, `and ${count(parameters.length - NAMES_SHOWN)} more`), rest),
  ];
}

export function table(caption, className, head, rows) {
  return el(
    "div",
    { class: "ddp-theatre-scroll", role: "region", tabindex: 0, "aria-label": caption },
    el(
      "table",
      { class: className },
      el("caption", {}, caption),
      el("thead", {}, head),
      el("tbody", {}, rows),
    ),
  );
}
