// What the page shares with the browser: settings kept in it, how often an action runs, and printing.

// Settings of the user, kept in this browser. The page also works without storage.

const PREFIX = "ddp:";

/**
 * Returns the stored value of a name, or the default.
 * @param {string} name
 * @param {any} usual
 */
export function preference(name, usual) {
  try {
    const stored = window.localStorage.getItem(PREFIX + name);
    return stored === null ? usual : JSON.parse(stored);
  } catch {
    return usual;
  }
}

/**
 * Stores a value.
 * @param {string} name
 * @param {unknown} value
 */
export function setPreference(name, value) {
  try {
    window.localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Private windows may refuse to store; the setting is then lost when the page is closed.
  }
}

// Limits how often an action runs. The first call that is due runs immediately, so that its work falls into a
// frame that is drawn anyway; the last of many calls is never dropped.

// Added to the delay of the timer, so that a call in this interval can run the action in its own frame.
const EXTRA_DELAY_MS = 200;

export class Throttle {
  /**
   * @param {number} everyMs
   * @param {() => void} act
   */
  constructor(everyMs, act) {
    this.everyMs = everyMs;
    this.act = act;
    /** @type {number | undefined} */
    this.timer = undefined;
    this.doneAt = -Infinity;
  }

  soon() {
    const restMs = this.doneAt + this.everyMs - performance.now();
    if (restMs <= 0) this.now();
    else this.timer ??= setTimeout(() => this.now(), restMs + EXTRA_DELAY_MS);
  }

  now() {
    this.close();
    this.doneAt = performance.now();
    this.act();
  }

  close() {
    clearTimeout(this.timer);
    this.timer = undefined;
  }
}

/**
 * Runs an action after the next paint, so that slow work does not delay the visible effect of a click.
 * @param {() => void} act
 */
export function afterPaint(act) {
  requestAnimationFrame(() => setTimeout(act));
}

// Charts are drawn for the screen; for printing they are scaled to the narrower page.

const DRAWN = ".ddp-plot .main-svg";

/** Scales charts to the width of the page while printing. */
export function beginPrinting() {
  window.addEventListener("beforeprint", () => {
    for (const drawing of document.querySelectorAll(DRAWN)) {
      drawing.setAttribute(
        "viewBox",
        `0 0 ${drawing.getAttribute("width")} ${drawing.getAttribute("height")}`,
      );
    }
  });
  window.addEventListener("afterprint", () => {
    for (const drawing of document.querySelectorAll(DRAWN)) drawing.removeAttribute("viewBox");
  });
}
