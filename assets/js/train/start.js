// Start answers a click at once: the run itself takes a moment to be made.

const START = "#start-button";

/** Listens once, on every page. */
export function beginStart() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest(START) : null;
    button?.setAttribute("aria-busy", "true");
  });
  // Who comes back by the browser's button finds the page as it was left.
  window.addEventListener("pageshow", () => document.querySelector(START)?.removeAttribute("aria-busy"));
}
