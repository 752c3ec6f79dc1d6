// The updates of a poll: Server-Sent Events while the page is visible, polling if events do not get through.

import { address, fetchJson, posted } from "../../shared/net.js";
import { takeSlot } from "../../run/stream.js";

const ASK_EVERY_MS = 1000;

/** The URL of a live route of a poll. */
export function pollAddress(pollId, route = "") {
  return address(`live/polls/${encodeURIComponent(pollId)}${route && `/${route}`}`);
}

/** The URL of the teacher's page of a poll, or of its projector view. */
export function pollPage(pollId, isProjector = false) {
  return address(`learn?poll=${encodeURIComponent(pollId)}${isProjector ? "&projector=1" : ""}`);
}

/**
 * Sends a prediction; rejects with a PlainError if it is not accepted. The sender is identified by the login,
 * or by the token.
 */
export function sendAnswer(pollId, answer, token = "") {
  return fetchJson(pollAddress(pollId, "answer"), posted({ answer, token }));
}

export class PollFeed {
  /**
   * @param {string} pollId
   * @param {(state: any) => void} onState called after each change; the last state is "ended"
   * @param {(error: Error | null) => void} onConnection
   * @param {boolean} isEarly also receive the predictions while the poll is open (teachers only)
   */
  constructor(pollId, onState, onConnection, isEarly = false) {
    this.pollId = pollId;
    this.query = isEarly ? "?early=true" : "";
    this.onState = onState;
    this.onConnection = onConnection;
    this.isOver = false;
    this.source = null;
    this.slot = null;
    this.timer = undefined;
    /** @type {object | null} Identifies the latest call of begin(). */
    this.turn = null;
    this.follow = () => this.begin();
    document.addEventListener("visibilitychange", this.follow);
    this.begin();
  }

  async begin() {
    this.stop();
    if (this.isOver || document.visibilityState !== "visible") return;
    const turn = {};
    this.turn = turn;
    const slot = await takeSlot();
    if (turn !== this.turn || this.isOver) {
      slot?.free();
      return;
    }
    this.slot = slot;
    if (slot === null) this.ask();
    else this.stream();
  }

  stream() {
    const source = new EventSource(pollAddress(this.pollId, "stream") + this.query);
    this.source = source;
    source.addEventListener("message", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      this.stop();
      this.ask();
    });
  }

  /** Polls once, then tries to stream again. */
  async ask() {
    try {
      this.take(await fetchJson(pollAddress(this.pollId) + this.query));
    } catch (error) {
      if (error.status === 404) this.take({ state: "ended" });
      else this.onConnection(error);
    }
    if (!this.isOver) this.timer = setTimeout(this.follow, ASK_EVERY_MS);
  }

  take(state) {
    if (this.isOver) return;
    this.onConnection(null);
    if (state.state === "ended") this.close();
    this.onState(state);
  }

  stop() {
    this.turn = null;
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.slot?.free();
    this.slot = null;
  }

  close() {
    this.isOver = true;
    document.removeEventListener("visibilitychange", this.follow);
    this.stop();
  }
}
