// A button that can be pressed now, or says why not.

import { setAttribute } from "../../shared/dom.js";

/** Leaves a button alone that is busy with a click. */
export function enable(button, isEnabled, title, reason) {
  if (button.dataset.busy) return;
  if (button.disabled === isEnabled) button.disabled = !isEnabled;
  setAttribute(button, "title", isEnabled ? title : reason);
}
