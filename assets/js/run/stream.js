// One run's payloads: Server-Sent Events while the page is visible, polling where they do not get through.

import { smoothingOf } from "../charts/style.js";
import { LIVE_STATES } from "../shared/format.js";
import { byteLength, fetchSized, runAddress } from "../shared/net.js";

const POLL_EVERY_MS = 1000;
const ENDED_POLL_EVERY_MS = 3000;
const TRY_STREAM_AGAIN_MS = 15000;
const MAX_STREAMS = 3;
// A delta is thinned hard: after a longer absence a snapshot shows the missed part finer.
const ASK_ANEW_AFTER_MS = 5000;

window.ddpStats ??= { opens: 0, messages: 0, bytes: 0 };

export class RunStream {
  /**
   * `look` is the axis and the smoothing of the curves, and where there are many ranks the `nodes` that are open. `onPayload(payload, bytes)` gets snapshots and deltas in order; `onConnection(error | null)` says
   * whether the server answers.
   */
  constructor(runId, look, onPayload, onConnection) {
    this.runId = runId;
    this.query = queryOf(look);
    this.onPayload = onPayload;
    this.onConnection = onConnection;
    this.cursor = -1;
    this.source = null;
    this.timer = null;
    this.takenAt = 0;
    this.streamAgainAt = 0;
    this.hasEnded = false;
    this.isClosed = false;
    this.polling = null;
    this.onVisibility = () => this.follow();
    document.addEventListener("visibilitychange", this.onVisibility);
    /** Resolves when the first payload has been asked for. */
    this.asked = this.follow();
  }

  /** Opens or closes whatever the page's visibility and the run's state ask for. */
  async follow() {
    this.stop();
    if (this.isClosed || document.visibilityState !== "visible") return;
    if (this.hasEnded) this.poll();
    else await this.open();
  }

  /** Looks again now: something was asked of the run. */
  poke() {
    if (this.source === null && !this.isClosed && document.visibilityState === "visible") {
      clearTimeout(this.timer ?? undefined);
      this.poll();
    }
  }

  /** Looks in another way from now on. */
  setLook(look) {
    this.query = queryOf(look);
    this.refresh();
  }

  /** Asks for everything anew; what is held has grown too long. */
  refresh() {
    this.cursor = -1;
    this.follow();
  }

  close() {
    this.isClosed = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.stop();
  }

  stop() {
    clearTimeout(this.timer ?? undefined);
    this.timer = null;
    this.source?.close();
    this.source = null;
    this.slot?.free();
    this.slot = null;
    this.polling?.abort();
    this.polling = null;
  }

  /** Streams when one of the browser's few connections is free, else polls: many windows must not block each other. */
  async open() {
    const slot = await takeSlot();
    if (
      this.isClosed ||
      this.source !== null ||
      this.polling !== null ||
      document.visibilityState !== "visible"
    ) {
      slot?.free();
      return;
    }
    if (slot === null) {
      this.streamAgainAt = Date.now() + TRY_STREAM_AGAIN_MS;
      this.poll();
      return;
    }
    this.slot = slot;
    this.stream();
  }

  stream() {
    window.ddpStats.opens += 1;
    if (Date.now() - this.takenAt > ASK_ANEW_AFTER_MS) this.cursor = -1;
    const source = new EventSource(runAddress(this.runId, "stream", { ...this.query, since: this.cursor }));
    this.source = source;
    let hasWorked = false;
    source.addEventListener("message", (event) => {
      if (source !== this.source) return;
      hasWorked = true;
      this.take(JSON.parse(event.data), byteLength(event.data));
    });
    source.addEventListener("end", () => {
      if (source !== this.source) return;
      this.stop();
      this.hasEnded = true;
      this.timer = setTimeout(() => this.poll(), ENDED_POLL_EVERY_MS);
    });
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      // Asks once the plain way, from where we are. A stream that worked is opened again at once; where
      // none gets through (a proxy that holds it back) polling goes on for a while.
      this.stop();
      this.streamAgainAt = hasWorked ? 0 : Date.now() + TRY_STREAM_AGAIN_MS;
      this.poll();
    });
  }

  async poll() {
    if (this.polling !== null) return;
    const polling = new AbortController();
    this.polling = polling;
    let failed = false;
    try {
      const { body, bytes } = await fetchSized(
        runAddress(this.runId, "poll", { ...this.query, since: this.cursor }),
        {
          signal: polling.signal,
        },
      );
      if (polling !== this.polling) return;
      this.take(body, bytes);
      // Taking it in may have asked for everything anew.
      if (polling !== this.polling) return;
    } catch (error) {
      if (polling !== this.polling || error.name === "AbortError") return;
      failed = true;
      this.onConnection(error);
    }
    this.polling = null;
    if (this.isClosed) return;
    if (!failed && !this.hasEnded && Date.now() >= this.streamAgainAt) {
      this.open();
    } else {
      this.timer = setTimeout(() => this.poll(), this.hasEnded ? ENDED_POLL_EVERY_MS : POLL_EVERY_MS);
    }
  }

  take(payload, bytes) {
    window.ddpStats.messages += 1;
    window.ddpStats.bytes += bytes;
    if (payload.type === "loading") {
      this.onPayload(payload, bytes);
      return;
    }
    this.cursor = payload.cursor;
    this.takenAt = Date.now();
    if (LIVE_STATES.has(payload.head.state)) this.hasEnded = false;
    this.onConnection(null);
    this.onPayload(payload, bytes);
  }
}

/**
 * One of the connections that pages of this browser may keep open; null when all are taken. A browser has six for
 * one server, and a seventh window would wait for ever. Where it cannot be told (plain http), the stream is opened.
 */
export async function takeSlot() {
  if (!navigator.locks) return { free() {} };
  for (let number = 0; number < MAX_STREAMS; number += 1) {
    const slot = await new Promise((resolve) => {
      navigator.locks.request(`ddp-stream-${number}`, { ifAvailable: true }, (lock) => {
        if (lock === null) {
          resolve(null);
          return;
        }
        // The lock is held until this promise is kept, or the tab is gone.
        return new Promise((free) => {
          resolve({ free });
        });
      });
    });
    if (slot !== null) return slot;
  }
  return null;
}

const queryOf = ({ axis, smoothing, nodes }) => ({
  axis,
  ...smoothingOf({ axis, smoothing }).query,
  ...(nodes === undefined ? {} : { nodes: nodes.join(",") }),
});
