// Requests to a trained model of a run. The server answers from a process of its own.

import { fetchJson, PlainError, runAddress } from "../../shared/net.js";

export class Model {
  constructor(runId) {
    this.runId = runId;
  }

  /** Lets the server prepare for a first question; it may have no room for that. */
  getReady() {
    fetchJson(runAddress(this.runId, "model/ready"), { method: "POST" }).catch(() => {});
  }

  /** The description of a checkpoint's model; starts the process that answers. */
  describe(step) {
    return fetchJson(runAddress(this.runId, "model", step === null ? {} : { step }));
  }

  /** The answer to one input; with `num_nearest` also the most similar validation samples. */
  predict(inputs, step, numNearest = 0, signal = null) {
    return fetchJson(runAddress(this.runId, "model/predict"), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ inputs, checkpoint_step: step, num_nearest: numNearest }),
      signal,
    });
  }

  /** Calls `onToken` with each token of a continued text; `signal` stops it. */
  async generate(options, step, onToken, signal) {
    const response = await fetch(runAddress(this.runId, "model/generate"), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...options, checkpoint_step: step }),
      signal,
    });
    if (!response.ok || !response.body) {
      const body = await response.json().catch(() => null);
      throw new PlainError(body?.detail ?? `The server answered ${response.status}.`);
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const message = JSON.parse(line);
        if (message.error) throw new PlainError(message.error);
        if (message.token) onToken(message.token);
      }
    }
  }
}

/**
 * Runs one request at a time; of the requests that arrive during it, only the newest is run. A slider moves faster
 * than a model answers.
 */
export class Newest {
  constructor() {
    this.isBusy = false;
    this.waiting = null;
  }

  /** `request` is an async function; it handles its own errors. */
  async want(request) {
    this.waiting = request;
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      while (this.waiting !== null) {
        const next = this.waiting;
        this.waiting = null;
        await next();
      }
    } finally {
      this.isBusy = false;
    }
  }
}
