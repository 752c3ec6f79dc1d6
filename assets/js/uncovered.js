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
 * @param {Element} element
 * @param {DOMRect} box
 */
function barOver(element, box) {
  const [low, high] = [Math.max(box.top, 0), Math.min(box.bottom, window.innerHeight)];
  for (const y of [low + 1, (low + high) / 2, high - 1]) {
    for (const x of [box.left + 1, (box.left + box.right) / 2, box.right - 1]) {
      let above = document.elementFromPoint(x, y);
      while (above && !above.contains(element) && !element.contains(above)) {
        if (STAYS.has(getComputedStyle(above).position)) return above;
        above = above.parentElement;
      }
    }
  }
  return null;
}
