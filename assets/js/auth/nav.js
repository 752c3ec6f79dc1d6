// The end of the navigation bar: the current user, class settings, the theme switch.

import { openClassSettings } from "./class_settings.js";
import { el, icon, setText } from "../shared/dom.js";
import { address } from "../shared/net.js";
import { person } from "./person.js";
import { prefer } from "../shared/prefs.js";
import { isDark, onThemeChange } from "../shared/theme.js";

/** Fills the end of the navigation bar; returns a function that removes its listeners. */
export function mountNav(place) {
  const words = el("span", {});
  const button = el("button", { type: "button", class: "ddp-tool" }, icon("sun"), words);
  const name = () => setText(words, isDark() ? "Light theme" : "Dark theme");
  name();
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
  return onThemeChange(name);
}

function personTools({ name, role, has_logout: hasLogout }) {
  const isTeacher = role === "teacher";
  return [
    isTeacher
      ? el(
          "button",
          { type: "button", class: "ddp-tool", title: "Visibility of runs", onclick: openClassSettings },
          "Class …",
        )
      : null,
    el(
      "span",
      { class: "ddp-person", title: `You are logged in as ${name}` },
      el("strong", {}, name),
      el("small", {}, role),
    ),
    // A form, so that the browser follows the redirect to the login page. Users of a proxy login are logged
    // out by the proxy.
    hasLogout
      ? el(
          "form",
          { method: "post", action: address("logout") },
          el("button", { type: "submit", class: "ddp-tool" }, "Log out"),
        )
      : null,
  ].filter(Boolean);
}
