// On the page of a queued run: its place in the queue, its expected start, and the Remove button.

import { el, icon, setText, show } from "../../shared/dom.js";
import { act } from "../../shared/toast.js";
import { address, fetchJson } from "../../shared/net.js";
import { askEvery } from "../../shared/polling.js";

const REFRESH_EVERY_MS = 2000;

export class QueuedPanel {
  /** `afterAction()` is called after a click was processed. */
  constructor(runId, afterAction) {
    this.runId = runId;
    this.end = null;
    this.words = el("strong", {}, "Queued");
    this.why = el("p", {});
    this.share = this.button("Use occupied GPUs too", afterAction, "use_occupied_gpus", runId);
    this.out = this.button("Remove from the queue", afterAction, "stop_run", runId, true);
    this.element = el(
      "section",
      { class: "ddp-queued", "aria-label": "Waiting in the queue", hidden: true },
      icon("wait"),
      el("div", { role: "status" }, this.words, this.why),
      el(
        "div",
        { class: "ddp-buttons" },
        this.share,
        this.out,
        el("a", { class: "ddp-button", href: address("queue") }, "The whole queue"),
      ),
    );
    show(this.share, false);
  }

  button(words, afterAction, ...call) {
    const button = el("button", { type: "button", class: "ddp-button" }, words);
    button.addEventListener("click", async () => {
      await act(button, ...call);
      afterAction();
    });
    return button;
  }

  /** Polls only while the run is queued. */
  update(state) {
    const waits = state === "queued";
    if (waits && this.end === null) {
      this.end = askEvery(
        REFRESH_EVERY_MS,
        () => this.ask(),
        () => {},
      );
    }
    if (!waits) {
      this.close();
      show(this.element, false);
    }
  }

  async ask() {
    const said = await fetchJson(`${address("live/queue/run")}?id=${encodeURIComponent(this.runId)}`);
    if (this.end === null) return;
    show(this.element, said.words !== "");
    if (said.words === "") return;
    setText(this.words, capital(said.words));
    setText(this.why, said.why);
    show(this.share, said.can_share_gpus);
  }

  close() {
    this.end?.();
    this.end = null;
  }
}

function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}
