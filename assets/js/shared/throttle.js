// Does something at most so often, however often it is asked: with the first call for which it is time, so that it
// falls into a frame that is drawn anyway; the last of many calls is not forgotten.

const LEFT_OVER_MS = 200;

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
    else this.timer ??= setTimeout(() => this.now(), restMs + LEFT_OVER_MS);
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
 * Acts after the next frame is painted: what takes long does not keep a click's own change from being seen.
 * @param {() => void} act
 */
export function afterPaint(act) {
  requestAnimationFrame(() => setTimeout(act));
}
