// One line about forwarding a run to an experiment tracker: the last step sent, or the error.

import { el, setText, show } from "../shared/dom.js";
import { LIVE_STATES, clock, count } from "../shared/format.js";
import { fetchJson, runAddress } from "../shared/net.js";
import { askEvery } from "../shared/polling.js";

const ASK_EVERY_MS = 3000;
const LATE_AFTER_MS = 30_000;
const WAITING_STATES = new Set(["queued", "starting"]);
const LABELS = {
  tensorboard: "TensorBoard",
  trackio: "Trackio",
  mlflow: "MLflow",
  wandb: "Weights & Biases",
};

/**
 * The line as text.
 * @param {string} label
 * @param {{ phase?: string, step: number, error: string | null, retry_unix_s: number | null, where: string,
 *   is_alive: boolean, command: string }} state
 */
export function words(label, state) {
  const { phase, step, error, where, command } = state;
  const sent = `${label}: forwarded up to step ${count(step ?? 0)}`;
  const place = where ? ` (${where})` : "";
  if (phase === "done") return `${label}: everything is forwarded${place}.`;
  if (phase === "given_up") {
    return `${sent}, then it gave up: ${error}. Send the rest with: ${command}`;
  }
  if (!state.is_alive) {
    return phase === undefined
      ? `${label}: forwarding has not begun. See logs/forward.log, or start it with: ${command}`
      : `${sent}; its process has ended early. Send the rest with: ${command}`;
  }
  if (error) {
    const retry = state.retry_unix_s === null ? "" : ` Trying again at ${clock(state.retry_unix_s)}.`;
    return `${sent}. ${error.replace(/\.$/, "")}.${retry} The run is not affected.`;
  }
  return `${sent}${place}.`;
}

export class ForwardingLine {
  /** @param {string} runId @param {{ config: { forward_to?: string }, imported: any }} summary */
  constructor(runId, { config, imported }) {
    this.element = el("p", { class: "ddp-hint", id: "forwarding", role: "status", hidden: true });
    const label = LABELS[config.forward_to ?? ""];
    this.end = () => {};
    if (!label || imported) return;
    this.end = askEvery(
      ASK_EVERY_MS,
      async () => {
        const state = await fetchJson(runAddress(runId, "forwarding"));
        // A queued run has no follower yet; just after the start its follower is still importing libraries.
        const hasBegun = state.phase !== undefined || state.is_alive;
        setText(this.element, words(label, state));
        show(this.element, hasBegun || this.isLate());
        if (!this.isLive && (state.phase === "done" || state.phase === "given_up")) this.end();
      },
      (error) => {
        if (error === null) return;
        show(this.element, true);
        setText(this.element, `${label}: ${error.message}`);
      },
    );
  }

  startedAtMs = 0;
  isLive = true;

  /** @param {string} state the run's state */
  update(state) {
    this.isLive = LIVE_STATES.has(state);
    if (WAITING_STATES.has(state)) this.startedAtMs = 0;
    else this.startedAtMs ||= performance.now();
  }

  isLate() {
    return this.startedAtMs > 0 && (!this.isLive || performance.now() - this.startedAtMs > LATE_AFTER_MS);
  }

  close() {
    this.end();
  }
}
