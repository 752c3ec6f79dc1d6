// The rows of the list: first all of them, then only changes.

import { address, fetchJson } from "../shared/net.js";

const ASK_EVERY_MS = 2000;
const ASK_ON_MS = 50;

export class RunsFeed {
  /**
   * `onRows(rows, {isWhole, numUnread})` receives the Map of all rows by run id after each change.
   * `onConnection` receives the error while the server does not respond, and null once it responds again.
   * @param {Record<string, any>} options
   */
  constructor({ onRows, onConnection = () => {}, onlyLive = false }) {
    this.onRows = onRows;
    this.onConnection = onConnection;
    this.onlyLive = onlyLive;
    this.rows = new Map();
    this.version = -1;
    this.isAsking = false;
    this.isClosed = false;
    this.onVisibility = () => this.ask();
    document.addEventListener("visibilitychange", this.onVisibility);
    this.ask();
  }

  /** Fetches now, and every two seconds while the page is visible. */
  async ask() {
    clearTimeout(this.timer);
    if (this.isAsking || this.isClosed || document.visibilityState !== "visible") return;
    this.isAsking = true;
    let wait = ASK_EVERY_MS;
    try {
      const news = await this.fetchNews();
      if (this.isClosed) return;
      this.onConnection(null);
      this.take(news);
      if (news.num_unread > 0) wait = ASK_ON_MS;
    } catch (error) {
      this.onConnection(error);
    } finally {
      this.isAsking = false;
    }
    if (!this.isClosed) this.timer = setTimeout(() => this.ask(), wait);
  }

  async fetchNews() {
    // The page sends the first request before this script is loaded.
    const early = window.ddpEarlyRows;
    window.ddpEarlyRows = null;
    const answer = this.version < 0 && !this.onlyLive ? await early?.catch(() => null) : null;
    if (answer?.ok) return answer.json();
    return fetchJson(address(`live/runs?since=${this.version}${this.onlyLive ? "&live=true" : ""}`));
  }

  take({ version, is_whole: isWhole, rows, gone, num_unread: numUnread, places = {} }) {
    const isFirst = this.version < 0;
    this.version = version;
    if (isWhole) this.rows.clear();
    for (const runId of gone) this.rows.delete(runId);
    for (const row of rows) this.rows.set(row.run_id, row);
    const hasMoved = this.placeRuns(places);
    const isOther = isWhole || rows.length > 0 || gone.length > 0 || numUnread !== this.numUnread;
    if (!isFirst && !hasMoved && !isOther) return;
    this.numUnread = numUnread;
    this.onRows(this.rows, { isWhole, numUnread });
  }

  /** Stores each run's place in the queue; returns true if one has changed. */
  placeRuns(places) {
    let hasMoved = false;
    for (const [runId, row] of this.rows) {
      const queuePosition = row.state === "queued" ? (places[runId] ?? null) : null;
      if ((row.place ?? null) === queuePosition) continue;
      this.rows.set(runId, { ...row, place: queuePosition });
      hasMoved = true;
    }
    return hasMoved;
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.onVisibility);
  }
}
