// The messages of a run or a poll: Server-Sent Events while the page is visible, polling if events do not get
// through.

import { smoothingOf } from "../charts/style.js";
import { LIVE_STATES } from "../shared/format.js";
import { byteLength, fetchSized, runAddress } from "../shared/net.js";

const POLL_EVERY_MS = 1000;
const ENDED_POLL_EVERY_MS = 3000;
const TRY_STREAM_AGAIN_MS = 15000;
const MAX_STREAMS = 3;
// Deltas are coarsely decimated: after a longer pause a snapshot has more points of the missed part.
const SNAPSHOT_AFTER_MS = 5000;

window.ddpStats ??= { opens: 0, messages: 0, bytes: 0 };

export class LiveStream {
  source = /** @type {any} */ (null);
  slot = /** @type {any} */ (null);
  timer = /** @type {any} */ (undefined);
  streamAgainAt = 0;
  hasEnded = false;
  isClosed = false;
  polling = /** @type {any} */ (null);

  /**
   * `address(route)` is the URL of the "stream" and the "poll". `onConnection(error | null)` reports whether the
   * server responds. A subclass implements `take(message, bytes)`.
   */
  constructor(address, onConnection) {
    this.address = address;
    this.onConnection = onConnection;
    this.onVisibility = () => this.follow();
    document.addEventListener("visibilitychange", this.onVisibility);
    /** Resolves once the first message has been requested. */
    this.firstAnswer = this.follow();
  }

  /** Takes a message. @param {any} _message @param {number} _bytes */
  take(_message, _bytes) {}

  /** Opens or closes the connection, depending on the visibility of the page and the state of the source. */
  async follow() {
    this.stop();
    if (this.isClosed || document.visibilityState !== "visible") return;
    if (this.hasEnded) this.poll();
    else await this.open();
  }

  /** Polls immediately after a command; an open stream needs no poll. */
  poke() {
    if (this.source === null && !this.isClosed && document.visibilityState === "visible") {
      clearTimeout(this.timer);
      this.poll();
    }
  }

  close() {
    this.isClosed = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.stop();
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.slot?.free();
    this.slot = null;
    this.polling?.abort();
    this.polling = null;
  }

  /**
   * Streams if one of the browser's few connections is free, otherwise polls, so that many windows do not
   * block each other.
   */
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
    const source = new EventSource(this.address("stream"));
    this.source = source;
    let hasWorked = false;
    source.addEventListener("message", (event) => {
      if (source !== this.source) return;
      hasWorked = true;
      this.count(JSON.parse(event.data), byteLength(event.data));
    });
    source.addEventListener("end", () => {
      if (source !== this.source) return;
      this.stop();
      this.hasEnded = true;
      this.timer = setTimeout(() => this.poll(), ENDED_POLL_EVERY_MS);
    });
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      // Poll once. A stream that worked is reopened immediately afterwards; if none gets through (a proxy that
      // buffers it), polling continues for a while.
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
      const { body, bytes } = await fetchSized(this.address("poll"), { signal: polling.signal });
      if (polling !== this.polling) return;
      this.count(body, bytes);
      // take() may have requested a snapshot.
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

  count(message, bytes) {
    window.ddpStats.messages += 1;
    window.ddpStats.bytes += bytes;
    this.take(message, bytes);
  }
}

export class RunStream extends LiveStream {
  cursor = -1;
  takenAt = 0;

  /**
   * `view` is the axis and the smoothing of the curves and, for many ranks, the open `nodes`.
   * `onPayload(payload, bytes)` receives snapshots and deltas in order.
   */
  constructor(runId, view, onPayload, onConnection) {
    super((route) => this.addressOf(runId, route), onConnection);
    this.query = queryOf(view);
    this.onPayload = onPayload;
  }

  addressOf(runId, route) {
    if (route === "stream" && Date.now() - this.takenAt > SNAPSHOT_AFTER_MS) this.cursor = -1;
    return runAddress(runId, route, { ...this.query, since: this.cursor });
  }

  /** Changes the axis, the smoothing or the open nodes. */
  setView(view) {
    this.query = queryOf(view);
    this.refresh();
  }

  /** Requests a snapshot, because the points held have grown too many. */
  refresh() {
    this.cursor = -1;
    this.follow();
  }

  /** @override */
  take(payload, bytes) {
    if (payload.type !== "loading") {
      this.cursor = payload.cursor;
      this.takenAt = Date.now();
      if (LIVE_STATES.has(payload.head.state)) this.hasEnded = false;
      this.onConnection(null);
    }
    this.onPayload(payload, bytes);
  }
}

/**
 * Takes one of the connections that the tabs of this browser may keep open; null if all are in use. Browsers
 * allow six connections per server, so that another window would wait forever. Without the Web Locks API
 * (plain http) the limit cannot be enforced, and the stream is opened.
 */
async function takeSlot() {
  if (!navigator.locks) return { free() {} };
  for (let number = 0; number < MAX_STREAMS; number += 1) {
    const slot = await new Promise((resolve) => {
      navigator.locks.request(`ddp-stream-${number}`, { ifAvailable: true }, (lock) => {
        if (lock === null) {
          resolve(null);
          return;
        }
        // The lock is held until this promise resolves or the tab is closed.
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
