// The columns of the list of runs, and the menu that chooses them.

import { setPreference, preference } from "../shared/browser.js";
import { toggleMenu } from "../shared/dialog.js";
import { el, icon, makeButton, setAttribute, setText, show, svg } from "../shared/dom.js";
import {
  LIVE_STATES,
  UNKNOWN,
  ago,
  dateTime,
  duration,
  isLossNaN,
  loss,
  metric,
  metricLabel,
  ranks,
  shareDone,
  stepOf,
} from "../shared/format.js";
import { textButton } from "../shared/widgets.js";

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
  { key: "progress", width: 9.2, title: "Progress", value: shareDone, first: "-" },
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
  const part = shareDone(row);
  setText(cells.progress.firstChild, stepOf(row));
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

/** A cell of a row; `--cell` is its place on a phone. */
export function cellOf(key, children, attributes = {}) {
  return el(
    "div",
    { role: "cell", class: `ddp-cell-${key}`, style: `--cell: ${key}`, ...attributes },
    children,
  );
}

/** Returns the empty cells by column key. */
export function makeCells() {
  const two = () => [el("span", {}), el("small", {})];
  const bar = () =>
    el("span", { class: "ddp-bar", "aria-hidden": "true" }, el("span", { class: "ddp-bar-fill" }));
  const children = { ranks: two(), best: two(), progress: [el("span", {}), bar()] };
  return Object.fromEntries(
    COLUMNS.map(({ key, title }) => [key, cellOf(key, children[key] ?? [], { "data-label": title })]),
  );
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
  const text = `Training loss between ${loss(curve.low)} and ${loss(curve.high)}`;
  const title = svg("title", {});
  title.textContent = text;
  const line = svg("polyline", {
    points: drawn.length === 1 ? `0,${HEIGHT / 2} ${WIDTH},${HEIGHT / 2}` : drawn.join(" "),
  });
  const frame = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" };
  cell.replaceChildren(svg("svg", { class: "ddp-small-curve", ...frame, "aria-label": text }, title, line));
}

/** True if a run has not ended. */
export function isLive(row) {
  return LIVE_STATES.has(row.state);
}

// The visible columns of the list: chosen by the user and stored in this browser, or as many as fit.

const STORAGE_KEY = "runs-columns";
const CHOOSABLE = COLUMNS.filter(({ key }) => key !== "name");
// Hidden in this order when not all columns fit.
const HIDDEN_FIRST = ["took", "ranks", "dataset", "model", "curve", "loss", "progress", "started", "owner"];
// Widths in rem: the checkbox, the minimum of the name, the menu, the gap, and the padding at both ends.
const [SELECT, NAME, MENU, GAP, ENDS] = [1.8, 10, 2.2, 0.75, 0.8];

export class ColumnChoice {
  /** `onChange()` is called when the user changes the columns. */
  constructor(onChange) {
    this.onChange = onChange;
    this.hasOwners = false;
    this.shown = new Set();
    this.button = textButton("Columns", () => this.openMenu(), "", { "aria-expanded": "false" });
    this.button.classList.add("ddp-column-choice");
  }

  openMenu() {
    const button = makeButton(
      { class: "ddp-menu-usual", onclick: () => this.choose(null) },
      "As many as fit",
    );
    toggleMenu(this.button, [...this.offered().map((column) => this.box(column)), button]);
  }

  box({ key, title }) {
    const onchange = ({ target }) => {
      const others = [...this.shown].filter((other) => other !== key);
      this.choose(target.checked ? [...others, key] : others);
    };
    return el("label", {}, el("input", { type: "checkbox", checked: this.shown.has(key), onchange }), title);
  }

  choose(keys) {
    setPreference(STORAGE_KEY, keys);
    this.onChange();
  }

  /** The available columns: owners only if the page has a login. */
  offered() {
    return CHOOSABLE.filter(({ key }) => key !== "owner" || this.hasOwners);
  }

  /** Sets the columns of a list; `width` is its width in rem. */
  layOut(list, width) {
    const offered = this.offered();
    const chosen = preference(STORAGE_KEY, null);
    let shown = Array.isArray(chosen) ? offered.filter(({ key }) => chosen.includes(key)) : offered;
    if (!Array.isArray(chosen)) {
      for (const key of HIDDEN_FIRST) {
        if (leastWidth(shown) <= width) break;
        shown = shown.filter((column) => column.key !== key);
      }
    }
    this.shown = new Set(shown.map(({ key }) => key));
    const hidden = CHOOSABLE.filter(({ key }) => !this.shown.has(key)).map(({ key }) => key);
    setAttribute(list, "data-hides", hidden.join(" "));
    setAttribute(list, "data-is-wide", leastWidth(shown) > width);
    const widths = shown.map(track).join(" ");
    list.style.setProperty("--columns", `${SELECT}rem minmax(${NAME}rem, 1fr) ${widths} ${MENU}rem`);
    list.style.setProperty("--least", `${leastWidth(shown)}rem`);
  }
}

/** @param {{ width?: number, grows?: number }} column */
function track({ width, grows }) {
  return grows ? `minmax(${width}rem, ${grows}fr)` : `${width}rem`;
}

function leastWidth(columns) {
  const parts = [SELECT, NAME, MENU, ENDS, ...columns.map(({ width }) => width + GAP)];
  return parts.reduce((sum, width) => sum + width, 2 * GAP);
}

// The badge of a run with an intentional mistake, for teaching.

const BROKEN = "broken on purpose";

/**
 * The badge, or null for a normal run. The short form names the mistake only in its tooltip.
 * @param {{ name: string, label: string, description: string } | null | undefined} mistake
 */
export function brokenBadge(mistake, isShort = false) {
  if (!mistake) return null;
  const words = `${BROKEN}: ${mistake.label}`;
  const attributes = { title: `${words}. ${mistake.description}`, "data-mistake": mistake.name };
  const text = el("span", {}, isShort ? BROKEN : words);
  return el("span", { class: "ddp-broken", ...attributes }, icon("warning"), text);
}
