// "As code" on the form: the script of the current settings, with the lines that the latest change changed.

import { CodePanel } from "../code/panel.js";
import { callEndpoint } from "../shared/net.js";

const SETTINGS = "#code-settings [data-config]";

/** Fills an element with the script of the form while it is visible; returns a function that stops it. */
export function mountFormCode(root) {
  const panel = new CodePanel();
  root.replaceChildren(panel.element);
  let asked = null;
  const follow = () => {
    const config = document.querySelector(SETTINGS)?.getAttribute("data-config") ?? "";
    if (config === asked || root.offsetParent === null) return;
    asked = config;
    if (config) ask(config);
    else panel.fail("These settings cannot be started: see the message above.");
  };
  const ask = async (config) => {
    try {
      const answer = await callEndpoint("as_code", JSON.parse(config));
      if (config === asked) panel.update(answer);
    } catch (error) {
      if (config === asked) panel.fail(error.message);
    }
  };
  const settings = new MutationObserver(follow);
  const place = document.getElementById("code-settings");
  if (place) settings.observe(place, { childList: true, subtree: true, attributes: true });
  // Opening the fold shows the element.
  const sight = new IntersectionObserver(follow);
  sight.observe(root);
  follow();
  return () => {
    settings.disconnect();
    sight.disconnect();
  };
}
