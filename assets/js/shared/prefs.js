// Settings of the user, kept in this browser. The page also works without storage.

const PREFIX = "ddp:";

/**
 * Returns the stored value of a name, or the default.
 * @param {string} name
 * @param {any} usual
 */
export function preference(name, usual) {
  try {
    const kept = window.localStorage.getItem(PREFIX + name);
    return kept === null ? usual : JSON.parse(kept);
  } catch {
    return usual;
  }
}

/**
 * Stores a value.
 * @param {string} name
 * @param {unknown} value
 */
export function prefer(name, value) {
  try {
    window.localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Private windows may refuse to store; the setting is then lost when the page is closed.
  }
}
