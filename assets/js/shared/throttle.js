// Limits how often an action runs. The first call that is due runs immediately, so that its work falls into a
// frame that is drawn anyway; the last of many calls is never dropped.

// Added to the delay of the timer, so that a call in this interval can run the action in its own frame.
const EXTRA_DELAY_MS = 200;

export class Calm {
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
