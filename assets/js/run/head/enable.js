// Enables or disables a button and explains why.

import { setAttribute } from "../../shared/dom.js";

/** Does nothing while the button is busy with a click. */
export function enable(button, isEnabled, title, reason) {
  if (button.dataset.busy) return;
  if (button.disabled === isEnabled) button.disabled = !isEnabled;
  setAttribute(button, "title", isEnabled ? title : reason);
}
