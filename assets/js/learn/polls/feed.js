// The updates of a poll, and sending an answer.

import { address, fetchJson, posted } from "../../shared/net.js";
import { LiveStream } from "../../run/stream.js";

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

export class PollFeed extends LiveStream {
  /**
   * @param {string} pollId
   * @param {(state: any) => void} onState called after each change; the last state is "ended"
   * @param {(error: Error | null) => void} onConnection
   * @param {boolean} isEarly also receive the predictions while the poll is open (teachers only)
   */
  constructor(pollId, onState, onConnection, isEarly = false) {
    const query = isEarly ? "?early=true" : "";
    super(
      (route) => pollAddress(pollId, route === "poll" ? "" : route) + query,
      (error) => (error?.status === 404 ? this.take({ state: "ended" }) : onConnection(error)),
    );
    this.onState = onState;
  }

  /** @override */
  take(state) {
    if (this.isClosed) return;
    this.onConnection(null);
    if (state.state === "ended") this.close();
    this.onState(state);
  }
}
