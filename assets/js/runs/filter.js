// The filter and the sort order of the list, stored in the URL so that they can be bookmarked.

import { LIVE_STATES } from "../shared/format.js";

/**
 * @typedef {Record<string, any>} Row A run in the list.
 * @typedef {Record<string, string>} Filter Search words, sort order, and a value per facet; "" matches any.
 */

export const FACETS = ["state", "owner", "model", "dataset", "tag"];
// Stands for the current user instead of an owner's name, in which "@" is not allowed.
export const CURRENT_USER = "@me";
const DEFAULT_SORT = "-started";
const haystacks = new WeakMap();

/**
 * Parses the filter from a query string. `me`, the name of the current user, is added later.
 * @param {string} search
 */
export function filterFromAddress(search) {
  const query = new URLSearchParams(search);
  /** @type {Filter} */
  const filter = { text: query.get("q") ?? "", sort: query.get("sort") ?? DEFAULT_SORT };
  for (const facet of FACETS) filter[facet] = query.get(facet) ?? "";
  return filter;
}

/**
 * The URL of a filter; default values are omitted.
 * @param {Filter} filter
 */
export function addressOfFilter(filter) {
  const query = new URLSearchParams();
  if (filter.text) query.set("q", filter.text);
  for (const facet of FACETS) if (filter[facet]) query.set(facet, filter[facet]);
  if (filter.sort !== DEFAULT_SORT) query.set("sort", filter.sort);
  const text = query.toString();
  return window.location.pathname + (text ? `?${text}` : "");
}

/**
 * True if the filter may hide runs.
 * @param {Filter} filter
 */
export function isFiltering(filter) {
  return filter.text.trim() !== "" || FACETS.some((facet) => filter[facet] !== "");
}

/**
 * Returns a predicate that is true for the rows that match a filter.
 * @param {Filter} filter
 */
export function matcher(filter) {
  const text = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  /** @param {Row} row */
  const isShown = (row) =>
    (!filter.state ||
      row.state === filter.state ||
      (filter.state === "live" && LIVE_STATES.has(row.state))) &&
    (!filter.owner || row.owner === (filter.owner === CURRENT_USER ? filter.me : filter.owner)) &&
    (!filter.model || row.model === filter.model) &&
    (!filter.dataset || row.dataset === filter.dataset) &&
    (!filter.tag || row.tags.includes(filter.tag)) &&
    text.every((word) => haystack(row).includes(word));
  return isShown;
}

/**
 * The values of each facet with their labels and the number of runs.
 * @param {Map<string, Row>} rows
 */
export function facetValues(rows) {
  const counts = Object.fromEntries(FACETS.map((facet) => [facet, new Map()]));
  /** @type {(facet: string, value: string, label: string) => void} */
  const add = (facet, value, label) => {
    const known = counts[facet].get(value);
    if (known) known.count += 1;
    else counts[facet].set(value, { label, count: 1 });
  };
  for (const row of rows.values()) {
    add("state", row.state, row.state);
    if (row.owner) add("owner", row.owner, row.owner);
    if (row.model) add("model", row.model, row.model_label);
    if (row.dataset) add("dataset", row.dataset, row.dataset_label);
    for (const tag of row.tags) add("tag", tag, tag);
  }
  return counts;
}

/**
 * @param {Row} row
 */
function haystack(row) {
  let text = haystacks.get(row);
  if (text === undefined) {
    const parts = [
      row.name,
      row.run_id,
      row.owner,
      ...row.tags,
      row.note,
      row.model,
      row.model_label,
      row.dataset,
      row.dataset_label,
      row.state,
    ];
    text = parts.filter(Boolean).join("\n").toLowerCase();
    haystacks.set(row, text);
  }
  return text;
}
