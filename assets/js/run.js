// The page of one run.

import { Board } from "./board.js";
import { commandPanel } from "./command.js";
import { el, setText, show } from "./dom.js";
import { LIVE_STATES, state as stateWords } from "./format.js";
import { Header } from "./header.js";
import { CheckpointTable, EventList } from "./history.js";
import { LogPanel } from "./logs.js";
import { address, fetchJson, runAddress } from "./net.js";
import { Progress, Tiles } from "./progress.js";
import { RanksPanel } from "./ranks.js";
import { SamplePanel } from "./sample.js";
import { RunStream } from "./stream.js";
import { complain } from "./toast.js";

const ASK_AGAIN_MS = 2000;

/** Fills an element with the page of the run named in the address; returns a function that ends it. */
export function mountRun(root) {
  const runId = new URLSearchParams(window.location.search).get("id");
  if (!runId) {
    root.replaceChildren(nothing("No run is named in this address.", "Choose one from the list of runs."));
    return () => {};
  }
  root.replaceChildren(el("div", { class: "ddp ddp-loading", role: "status" }, `Opening ${runId} …`));
  let page = null;
  let isClosed = false;
  const open = async () => {
    try {
      const summary = await fetchJson(runAddress(runId, "summary"));
      if (!isClosed) page = new RunPage(root, runId, summary);
    } catch (error) {
      if (isClosed) return;
      root.replaceChildren(nothing(`The run ${runId} cannot be shown.`, error.message));
      if (error.status !== 404) setTimeout(open, ASK_AGAIN_MS);
    }
  };
  open();
  return () => {
    isClosed = true;
    page?.close();
  };
}

class RunPage {
  constructor(root, runId, summary) {
    this.name = summary.config.name || runId;
    this.deviceKind = null;
    this.ranks = null;
    const look = () => this.stream.poke();
    this.header = new Header(runId, summary, look);
    this.progress = new Progress(summary);
    this.tiles = new Tiles(summary);
    this.board = new Board(runId, summary, complain);
    this.ranksPanel = new RanksPanel(summary);
    this.sample = new SamplePanel();
    this.checkpoints = new CheckpointTable(runId, summary.num_steps, look);
    this.events = new EventList();
    this.logs = new LogPanel(runId, summary.config.nproc_per_node);
    this.connection = el("p", { class: "ddp-connection", role: "status", hidden: true });
    root.replaceChildren(
      el(
        "div",
        { class: "ddp ddp-run-page" },
        this.connection,
        this.header.element,
        this.progress.element,
        this.tiles.element,
        this.board.element,
        el("div", { class: "ddp-pair" }, this.ranksPanel.element, this.sample.element),
        el("div", { class: "ddp-pair" }, this.checkpoints.element, this.events.element),
        this.logs.element,
        commandPanel(summary),
      ),
    );
    this.stream = new RunStream(
      runId,
      (payload, bytes) => this.take(payload, bytes),
      (error) => this.noteConnection(error),
    );
  }

  take(payload, bytes) {
    const { head, ranks, devices } = payload;
    this.board.take(payload, bytes);
    if (devices?.length) this.deviceKind = devices[0].kind;
    this.ranks = ranks ?? this.ranks;
    this.header.noteMarks(payload.marks);
    const best = head.best?.step ?? null;
    // A resume with another global batch changes it.
    this.header.numSteps = this.checkpoints.numSteps = head.num_steps;
    this.header.update(head.state, payload.checkpoints, this.deviceKind, best);
    this.progress.update(head);
    this.tiles.update(head, this.ranks);
    this.ranksPanel.update(ranks, devices);
    this.sample.update(payload.sample);
    this.checkpoints.update(payload.checkpoints, head.state, best);
    this.events.update(payload.marks, payload.type === "snapshot");
    this.setTitle(head);
    if (this.board.traces.isTooLong()) this.stream.refresh();
  }

  setTitle(head) {
    const isMoving = LIVE_STATES.has(head.state) && head.num_steps > 0;
    const lead = isMoving ? `${Math.floor((100 * head.step) / head.num_steps)}%` : stateWords(head.state)[1];
    const title = `${lead} · ${this.name}`;
    if (document.title !== title) document.title = title;
  }

  noteConnection(error) {
    show(this.connection, error !== null);
    setText(this.connection, error === null ? "" : `${error.message} Trying again …`);
  }

  close() {
    this.stream.close();
    this.board.close();
    this.logs.close();
  }
}

function nothing(title, words) {
  return el(
    "div",
    { class: "ddp ddp-nothing" },
    el("h1", {}, title),
    el("p", {}, words),
    el("p", {}, el("a", { href: address("runs") }, "All runs")),
  );
}
