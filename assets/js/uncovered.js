// What has the focus is never below a bar that stays where it is while the page scrolls (WCAG 2.4.11).

const GAP = 12;
const STAYS = new Set(["fixed", "sticky"]);

/** Scrolls each element that is reached by the keyboard out from below such a bar, on every page. */
export function beginUncovering() {
  document.addEventListener("focusin", ({ target }) => {
    if (!(target instanceof HTMLElement) || !target.matches(":focus-visible")) return;
    // After the browser's own scrolling.
    requestAnimationFrame(() => uncover(target));
  });
}

/**
 * Scrolls an element out from below a bar; of one that is larger than the room that is left, the beginning.
 * @param {Element} element
 */
export function uncover(element) {
  const box = element.getBoundingClientRect();
  const bar = barOver(element, box)?.getBoundingClientRect();
  if (!bar) return;
  const isBelow = bar.top + bar.bottom > window.innerHeight;
  const down = Math.min(box.bottom - bar.top + GAP, box.top - GAP);
  window.scrollBy({ top: isBelow ? down : box.top - bar.bottom - GAP, behavior: "instant" });
}

/**
 * The bar that lies over some place of an element.
 * @param {Element} element
 * @param {DOMRect} box
 */
function barOver(element, box) {
  const [low, high] = [Math.max(box.top, 0), Math.min(box.bottom, window.innerHeight)];
  const rows = [low + 1, (low + high) / 2, high - 1];
  const columns = [box.left + 1, (box.left + box.right) / 2, box.right - 1];
  const places = rows.flatMap((y) => columns.map((x) => document.elementFromPoint(x, y)));
  return places.map((above) => barOf(above, element)).find((bar) => bar !== null);
}

/**
 * The bar that an element is in, where it is not a part of `below`, nor around it.
 * @param {Element | null} element
 * @param {Element} below
 */
function barOf(element, below) {
  let above = element;
  while (above && !above.contains(below) && !below.contains(above)) {
    if (STAYS.has(getComputedStyle(above).position)) return above;
    above = above.parentElement;
  }
  return null;
}
