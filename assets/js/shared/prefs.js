// What a person set on the page, kept in this browser; a browser that keeps nothing works all the same.

const PREFIX = "ddp:";

/**
 * The kept value of a name, or what is usual.
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
 * Keeps a value.
 * @param {string} name
 * @param {unknown} value
 */
export function prefer(name, value) {
  try {
    window.localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Private windows may refuse; the page then forgets when it is closed.
  }
}
