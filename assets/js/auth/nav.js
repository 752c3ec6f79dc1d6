// The end of the navigation: who is logged in, what a teacher sets, light or dark.

import { openClassSettings } from "./class_settings.js";
import { el, icon } from "../shared/dom.js";
import { address } from "../shared/net.js";
import { person } from "./person.js";
import { prefer } from "../shared/prefs.js";
import { isDark } from "../shared/theme.js";

/** Fills the end of the navigation; returns a function that ends it. */
export function mountNav(place) {
  const button = el(
    "button",
    { type: "button", class: "ddp-tool", title: "Light or dark" },
    icon("sun"),
    el("span", {}, "Light or dark"),
  );
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    prefer("theme", theme);
    for (const element of [document.documentElement, document.body]) {
      element.classList.toggle("dark", theme === "dark");
    }
  });
  const box = el("div", { class: "ddp ddp-nav-tools" }, button);
  place.replaceChildren(box);
  person().then((who) => {
    if (who.has_login) box.append(...personTools(who));
  });
  return () => {};
}

function personTools({ name, role }) {
  const isTeacher = role === "teacher";
  return [
    isTeacher
      ? el(
          "button",
          { type: "button", class: "ddp-tool", title: "Who sees whose runs", onclick: openClassSettings },
          "Class …",
        )
      : null,
    el(
      "span",
      { class: "ddp-person", title: `You are logged in as ${name}` },
      el("strong", {}, name),
      el("small", {}, role),
    ),
    // A form, so that the browser itself follows to the page to log in.
    el(
      "form",
      { method: "post", action: address("logout") },
      el("button", { type: "submit", class: "ddp-tool" }, "Log out"),
    ),
  ].filter(Boolean);
}
