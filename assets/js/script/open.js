// Puts a text into the editor of "Run my script", from any other page.

import { address } from "../shared/net.js";

const KEY = "ddp-script";

/**
 * Opens "Run my script" with these files in its editor: an object of names and texts, and the entry file.
 * `settings` may have the fields of /start_script.
 */
export function openInEditor(files, entry, settings = {}) {
  sessionStorage.setItem(KEY, JSON.stringify({ files, entry, ...settings }));
  window.location.assign(address("script"));
}

/** Returns what `openInEditor` has left, once. */
export function takeOpened() {
  const kept = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  try {
    return kept === null ? null : JSON.parse(kept);
  } catch {
    return null;
  }
}
