// The columns of the list: title, sort key and cell content.

import { el, setAttribute, setText, show, svg } from "../shared/dom.js";
import {
  ago,
  count,
  dateTime,
  duration,
  isLossNaN,
  LIVE_STATES,
  loss,
  metric,
  metricLabel,
  ranks,
  UNKNOWN,
} from "../shared/format.js";

const STATE_ORDER = [
  "running",
  "paused",
  "stopping",
  "starting",
  "queued",
  "failed",
  "lost",
  "stopped",
  "finished",
];
const LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const names = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/**
 * `value(row)` is the sort key; `first` is the direction of the first click; `term` explains the title.
 * `width` is in rem; the name takes the remaining space. A column with `grows` receives that share of it,
 * where the name counts as 1.
 */
export const COLUMNS = [
  { key: "name", title: "Run", value: (row) => row.name, first: "", term: "run" },
  { key: "owner", width: 6, title: "Owner", value: (row) => row.owner, first: "" },
  { key: "state", width: 7.2, title: "State", value: (row) => STATE_ORDER.indexOf(row.state), first: "" },
  { key: "model", width: 7.2, title: "Model", value: (row) => row.model_label, first: "" },
  { key: "dataset", width: 8.6, grows: 0.7, title: "Data set", value: (row) => row.dataset_label, first: "" },
  { key: "ranks", width: 6.8, title: "Ranks", value: (row) => row.nproc_per_node, first: "-", term: "rank" },
  { key: "progress", width: 9.2, title: "Progress", value: share, first: "-" },
  { key: "curve", width: 6, title: "Loss curve" },
  { key: "loss", width: 5.8, title: "Loss", value: (row) => row.loss, first: "", term: "loss" },
  { key: "best", width: 6.2, title: "Best", value: bestValue, first: "", term: "evaluation" },
  { key: "started", width: 6.2, title: "Started", value: startedAt, first: "-" },
  { key: "took", width: 6, title: "Took", value: (row) => row.took_s, first: "-" },
];

/**
 * Returns a comparison function for rows; `sort` is a column key, with a leading "-" for descending. Unknown
 * values come last.
 */
export function comparer(sort) {
  const isDown = sort.startsWith("-");
  const column = COLUMNS.find((each) => each.key === sort.replace("-", ""));
  const value = column?.value ?? startedAt;
  return (one, other) => {
    const [a, b] = [value(one), value(other)];
    const isA = a !== null && a !== undefined;
    const isB = b !== null && b !== undefined;
    if (!isA || !isB) return Number(isB) - Number(isA) || tie(one, other);
    const order = typeof a === "string" ? names.compare(a, b) : a - b;
    return (isDown ? -order : order) || tie(one, other);
  };
}

/** Fills the cells of a row except its name, tags and buttons. */
export function fillCells(cells, row) {
  setText(cells.owner, row.owner ?? UNKNOWN);
  setText(cells.model, row.model_label ?? UNKNOWN);
  setText(cells.dataset, row.dataset_label ?? UNKNOWN);
  setText(cells.ranks.firstChild, ranks(row.nproc_per_node, row.device));
  setText(cells.ranks.lastChild, row.strategy_label ?? "");
  const part = share(row);
  setText(
    cells.progress.firstChild,
    row.num_steps ? `${count(row.step)} of ${count(row.num_steps)}` : count(row.step),
  );
  show(cells.progress.lastChild, part !== null);
  cells.progress.lastChild.firstChild.style.width = `${(100 * (part ?? 0)).toFixed(1)}%`;
  setAttribute(cells.progress.lastChild, "data-state", row.state);
  drawCurve(cells.curve, row.curve);
  setText(cells.loss, isLossNaN(row) ? "NaN" : loss(row.loss));
  const best = row.best_metric;
  setText(cells.best.firstChild, best ? metric(best.name, best.value) : UNKNOWN);
  setText(cells.best.lastChild, best ? metricLabel(best.name) : "");
  setText(cells.started, ago(row.created_unix_s));
  setAttribute(cells.started, "title", dateTime(row.created_unix_s));
  setText(cells.took, duration(row.took_s));
}

function startedAt(row) {
  return row.created_unix_s;
}

/** Returns the empty cells by column key. */
export function makeCells() {
  const two = () => [el("span", {}), el("small", {})];
  const bar = () =>
    el("span", { class: "ddp-bar", "aria-hidden": "true" }, el("span", { class: "ddp-bar-fill" }));
  const children = { ranks: two(), best: two(), progress: [el("span", {}), bar()] };
  return Object.fromEntries(
    COLUMNS.map(({ key, title }) => [
      key,
      el("div", { role: "cell", class: `ddp-cell-${key}`, "data-label": title }, children[key] ?? []),
    ]),
  );
}

function share(row) {
  return row.num_steps ? Math.min(1, row.step / row.num_steps) : null;
}

/** The sort key of the best metric: negated where larger is better, so that the best always comes first. */
function bestValue(row) {
  if (!row.best_metric) return null;
  const { name, value } = row.best_metric;
  return name === "perplexity" || name === "rmse" ? value : -value;
}

function tie(one, other) {
  return other.created_unix_s - one.created_unix_s || names.compare(one.run_id, other.run_id);
}

const WIDTH = 100;
const HEIGHT = 24;

/** Draws the small curve: one character per point, a level between the lowest and the highest loss. */
function drawCurve(cell, curve) {
  const points = curve?.points ?? "";
  if (cell.dataset.points === points) return;
  cell.dataset.points = points;
  if (!curve) {
    cell.replaceChildren(el("span", {}, UNKNOWN));
    return;
  }
  const last = Math.max(1, points.length - 1);
  const places = [...points].map((letter, index) => ({
    x: ((WIDTH * index) / last).toFixed(1),
    level: LEVELS.indexOf(letter),
  }));
  const drawn = places
    .filter(({ level }) => level >= 0)
    .map(({ x, level }) => `${x},${(HEIGHT - 1.5 - ((HEIGHT - 3) * level) / 63).toFixed(1)}`);
  const words = `Training loss between ${loss(curve.low)} and ${loss(curve.high)}`;
  const title = svg("title", {});
  title.textContent = words;
  const line = svg("polyline", {
    points: drawn.length === 1 ? `0,${HEIGHT / 2} ${WIDTH},${HEIGHT / 2}` : drawn.join(" "),
  });
  cell.replaceChildren(
    svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        class: "ddp-small-curve",
        role: "img",
        "aria-label": words,
      },
      title,
      line,
    ),
  );
}

/** True if a run has not ended. */
export function isLive(row) {
  return LIVE_STATES.has(row.state);
}
