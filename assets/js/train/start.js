// Marks Start as busy immediately after a click, because creating the run takes a moment.

const START = "#start-button";

/** Adds one listener for all pages. */
export function beginStart() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest(START) : null;
    button?.setAttribute("aria-busy", "true");
  });
  // The Back button restores the page from the cache with the busy mark.
  window.addEventListener("pageshow", () => document.querySelector(START)?.removeAttribute("aria-busy"));
}
