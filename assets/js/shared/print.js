// Paper is narrower than a screen: what is drawn for the one is scaled to the other.

const DRAWN = ".ddp-plot .main-svg";

/** Lets charts be printed as wide as their place on paper. */
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
