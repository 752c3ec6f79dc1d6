// The current user, the right to change a run, and the end of the navigation bar. The server enforces rights;
// this only avoids offering actions that would fail.

import { setPreference } from "../shared/browser.js";
import { orShowError, showMessage, openDialog } from "../shared/dialog.js";
import { el, icon, makeButton, setText, show } from "../shared/dom.js";
import { address, callEndpoint, fetchJson, askEvery } from "../shared/net.js";
import { isDark, onThemeChange } from "../shared/theme.js";

// Used without a login, and if the request fails.
const EVERYBODY = { has_login: false, has_logout: false, name: "", role: "teacher" };
let request = null;

/** Resolves to {has_login, has_logout, name, role} of the current user. */
export function person() {
  request ??= fetchJson(address("live/me")).catch(() => {
    request = null;
    return EVERYBODY;
  });
  return request;
}

/** True if the user may stop, rename or delete a run of this owner. */
export function mayChange(attributes, owner) {
  return attributes.role === "teacher" || (attributes.name !== "" && owner === attributes.name);
}

/** The reason why a user may not change a run. */
export function whyNot(owner) {
  return owner
    ? `This run belongs to ${owner}. Only ${owner} or a teacher can change it.`
    : "This run has no owner. Only a teacher can change it.";
}

// Settings of the class, for teachers: which runs students can see, and whether they run scripts.

const WHO_SEES = [
  [
    true,
    "Everybody sees all runs",
    "People learn from each other’s curves. Only the owner and teachers can stop or change a run.",
  ],
  [false, "Everybody sees only their own", "For exams. Teachers still see all runs."],
];

/** Opens the dialog; saved settings take effect immediately for all users. */
async function openClassSettings() {
  const settings = await orShowError(callEndpoint("class_settings", null));
  if (!settings) return;
  const choices = WHO_SEES.map(([value, title, text]) => choice(value, title, text, settings.everyone_sees));
  const scripts = el("input", { type: "checkbox", checked: settings.students_run_scripts });
  const ofScripts = el("span", {}, "Students may run their own scripts, in a sandbox");
  const rights = [el("legend", {}, "Visibility of runs"), choices, el("label", {}, scripts, ofScripts)];
  await openDialog({
    title: "The class",
    content: el("fieldset", { class: "ddp-class" }, rights),
    confirm: "Save",
    onConfirm: async () => {
      const { value, title } = choices.find((each) => each.input.checked) ?? choices[0];
      await callEndpoint("class_settings", {
        everyone_sees: value,
        students_run_scripts: scripts.checked,
      });
      showMessage(`${title}, from now on.`);
    },
  });
}

function choice(value, title, explanation, chosen) {
  const input = el("input", { type: "radio", name: "everyone_sees", checked: value === chosen });
  const text = el("span", {}, el("strong", {}, title), el("small", {}, explanation));
  return { value, title, input, element: el("label", {}, input, text) };
}

// The end of the navigation bar: the current user, class settings, the theme switch.

/** Fills the end of the navigation bar; returns a function that removes its listeners. */
export function mountNav(place) {
  const text = el("span", {});
  const button = makeButton({ class: "ddp-tool" }, icon("sun"), text);
  const name = () => setText(text, isDark() ? "Light theme" : "Dark theme");
  name();
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    setPreference("theme", theme);
    for (const element of [document.documentElement, document.body]) {
      element.classList.toggle("dark", theme === "dark");
    }
  });
  const box = el("div", { class: "ddp ddp-nav-tools" }, button);
  place.replaceChildren(box);
  person().then((attributes) => {
    if (attributes.has_login) box.append(...personTools(attributes));
  });
  return onThemeChange(name);
}

/** Leaves nothing that was entered in this tab for the next user of this computer. */
function forget() {
  // A page may keep its content when it is left: this listener is called after those of the page.
  addEventListener("pagehide", () => sessionStorage.clear());
}

function personTools({ name, role, has_logout: hasLogout }) {
  const settings = { class: "ddp-tool", title: "Visibility of runs", onclick: openClassSettings };
  const attributes = { class: "ddp-person", title: `You are logged in as ${name}` };
  const logOut = el("button", { type: "submit", class: "ddp-tool" }, "Log out");
  return [
    role === "teacher" ? makeButton(settings, "Class …") : null,
    el("span", attributes, el("strong", {}, name), el("small", {}, role)),
    // A form, so that the browser follows the redirect to the login page. Users of a proxy login are logged
    // out by the proxy.
    hasLogout ? el("form", { method: "post", action: address("logout"), onsubmit: forget }, logOut) : null,
  ].filter(Boolean);
}

// The link to the queue in the navigation; shown if the page has a login or if runs are waiting.

const EVERY_MS = 3000;

/** Updates the number of queued runs while the page is visible; returns a function that stops it. */
export function mountNavQueue(place) {
  const isHere = place.dataset.current === "true";
  const link = el("a", { href: address("queue"), "aria-current": isHere ? "page" : null }, "Queue");
  show(link, isHere);
  place.replaceChildren(link);
  const ask = async () => {
    const brief = await fetchJson(address("live/queue/brief"));
    show(link, isHere || brief.is_shown);
    setText(link, brief.num_waiting > 0 ? `Queue (${brief.num_waiting})` : "Queue");
  };
  // Errors are ignored: the rest of the page reports that the server does not respond.
  return askEvery(EVERY_MS, ask);
}
