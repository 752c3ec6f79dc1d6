// Installs the package of a data set with a button and shows the progress.

import { el, setText, show } from "../shared/dom.js";
import { textButton } from "../shared/widgets.js";
import { callEndpoint, pause } from "../shared/net.js";
import { person } from "../auth/person.js";
import { showMessage } from "../shared/dialog.js";

const ASK_EVERY_MS = 500;
const BUTTON = "button[data-install]";

/**
 * A line with an Install button, shown only to teachers; without a login everyone counts as a teacher.
 * @param {string} name
 * @param {string | null} done action after the installation
 */
export function installLine(name, done = null) {
  const button = textButton("Install", null, "small", { "data-install": name, "data-done": done });
  const line = el("div", { class: "ddp-install", hidden: true }, button, " ", el("span", { role: "status" }));
  person().then(({ role }) => show(line, role === "teacher"));
  return line;
}

/** Adds one listener for all present and future install buttons. */
export function beginInstalls() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest(BUTTON) : null;
    if (button instanceof HTMLButtonElement) install(button);
  });
}

async function install(button) {
  const name = button.dataset.install;
  const text = button.nextElementSibling;
  button.disabled = true;
  setText(text, "Installing …");
  try {
    let state = await callEndpoint("install_data_set", name);
    while (state.state === "running") {
      await pause(ASK_EVERY_MS);
      state = await callEndpoint("data_set_install", name);
      setText(text, state.line ? `Installing … ${state.line}` : "Installing …");
    }
    if (state.state === "done") {
      setText(text, "Installed.");
      document.getElementById("data-installed")?.click();
      if (button.closest("#own-data-seen")) {
        document.getElementById("inspect-button")?.click();
        return;
      }
      const next = button.dataset.done ?? "choose it under “Data set” on the Train page.";
      showMessage(`${state.label} is installed: ${next}`);
      return;
    }
    setText(text, `Not installed. ${state.error}`);
  } catch (error) {
    setText(text, `Not installed. ${error.message}`);
  }
  button.disabled = false;
}
