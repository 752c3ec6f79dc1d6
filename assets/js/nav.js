// The end of the navigation: light or dark, and the tour.

import { el, icon } from "./dom.js";
import { prefer } from "./prefs.js";
import { isDark } from "./theme.js";

/** Fills the end of the navigation; returns a function that ends it. */
export function mountNav(place) {
  const button = el("button", { type: "button", class: "ddp-tool", title: "Light or dark" }, icon("sun"), el("span", {}, "Light or dark"));
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    prefer("theme", theme);
    for (const element of [document.documentElement, document.body]) element.classList.toggle("dark", theme === "dark");
  });
  place.replaceChildren(el("div", { class: "ddp" }, button));
  return () => {};
}
