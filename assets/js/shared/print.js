// Charts are drawn for the screen; for printing they are scaled to the narrower page.

const DRAWN = ".ddp-plot .main-svg";

/** Scales charts to the width of the page while printing. */
export function beginPrinting() {
  window.addEventListener("beforeprint", () => {
    for (const drawing of document.querySelectorAll(DRAWN)) {
      drawing.setAttribute(
        "viewBox",
        `0 0 ${drawing.getAttribute("width")} ${drawing.getAttribute("height")}`,
      );
    }
  });
  window.addEventListener("afterprint", () => {
    for (const drawing of document.querySelectorAll(DRAWN)) drawing.removeAttribute("viewBox");
  });
}
