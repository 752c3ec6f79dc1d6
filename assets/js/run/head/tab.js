// The browser tab: progress in its title, and an optional notification when the run has ended.

import { LIVE_STATES, metric, metricLabel, state as stateWords } from "../../shared/format.js";
import { preference } from "../../shared/prefs.js";
import { visible } from "../../shared/visible.js";

const ENDED = { finished: "has finished", failed: "has failed", stopped: "was stopped", lost: "was lost" };

export class Tab {
  constructor(name) {
    this.name = visible(name);
    this.before = null;
    this.titleBefore = document.title;
  }

  update(head) {
    const isLive = LIVE_STATES.has(head.state);
    const lead =
      isLive && head.num_steps > 0
        ? `${Math.floor((100 * head.step) / head.num_steps)}%`
        : stateWords(head.state)[1];
    const title = `${lead} · ${this.name}`;
    if (document.title !== title) document.title = title;
    const hasEnded = this.before !== null && LIVE_STATES.has(this.before) && !isLive;
    this.before = head.state;
    if (hasEnded && wantsNotifications()) this.tell(head);
  }

  tell(head) {
    const best = head.best
      ? `Best ${metricLabel(head.best.name)} ${metric(head.best.name, head.best.value)}.`
      : "";
    const notification = new Notification(`${this.name} ${ENDED[head.state] ?? "has ended"}`, {
      body: head.error || best,
      tag: this.name,
    });
    notification.addEventListener("click", () => window.focus());
  }

  close() {
    document.title = this.titleBefore;
  }
}

/** True if this browser may and should show a notification. */
export function wantsNotifications() {
  return "Notification" in window && Notification.permission === "granted" && preference("notify", false);
}
