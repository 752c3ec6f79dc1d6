// Renders lesson text, which the server sends as a tree of plain values. Builds elements, never HTML.

import { el } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { term } from "../shared/terms.js";

/** @typedef {string | any[]} Inline a text, or a kind followed by its content */

/**
 * The elements of a list of blocks.
 * @param {any[][]} trees
 * @returns {HTMLElement[]}
 */
export function blocks(trees) {
  return trees.map(block);
}

/** @param {any[]} tree */
function block([kind, inside]) {
  if (kind === "h3") return el("h3", {}, inlines(inside));
  if (kind === "pre") return el("pre", { class: "ddp-lesson-code", tabindex: 0 }, inside);
  if (kind === "quote") return el("blockquote", {}, blocks(inside));
  if (kind === "ul" || kind === "ol") {
    return el(
      kind,
      {},
      inside.map((item) => el("li", {}, blocks(item))),
    );
  }
  return el("p", {}, inlines(inside));
}

/**
 * The nodes of a paragraph's content.
 * @param {Inline[]} tree
 * @returns {(string | HTMLElement)[]}
 */
export function inlines(tree) {
  return tree.map(inline);
}

/** @param {Inline} tree */
function inline(tree) {
  if (typeof tree === "string") return tree;
  const [kind, ...rest] = tree;
  if (kind === "code") return el("code", {}, rest[0]);
  if (kind === "term") return term(rest[0], plainText(rest[1]));
  if (kind === "link") {
    return el("a", { href: rest[0], rel: "noreferrer", target: "_blank" }, inlines(rest[1]));
  }
  return el(kind === "b" ? "strong" : "em", {}, inlines(rest[0]));
}

/**
 * The text without markup.
 * @param {Inline[]} tree
 * @returns {string}
 */
export function plainText(tree) {
  return tree.map((part) => (typeof part === "string" ? part : plainText([part.at(-1)].flat()))).join("");
}

// For example ", in trainers/parallel/shared_all_reduce.py:157, SharedSum._wait_for".
const PLACE_IN_CODE = /, in [^;,]+:\d+, [^;]+?(?=;|\.\s|\.$)/g;
const AT_STEP = /\bis at step ([\d,]+), /g;

/**
 * Shortens an error for learners: without code locations, and with steps counted as on the page.
 * @param {string} error
 */
export function plainWords(error) {
  return error.replaceAll(PLACE_IN_CODE, "").replaceAll(AT_STEP, (_, step) => {
    const num = Number(step.replaceAll(",", "")) - 1;
    return `has done ${count(num)} step${num === 1 ? "" : "s"} and is `;
  });
}
