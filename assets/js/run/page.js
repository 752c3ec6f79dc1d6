// The page of a run.

import { ScriptPanel } from "./script_panel.js";
import { runAsCode } from "../script/as_code.js";
import { Board } from "./charts/board.js";
import { afterPaint, Throttle } from "../shared/browser.js";
import { ConfigurationPanel, InsightStrip, MemoryPanel } from "./insights.js";
import { ConfusionPanel, SamplePanel } from "./sample/sample.js";
import { DevicesPanel, nodeRows, initiallyOpenNodes } from "./devices.js";
import { el, guarded, setText, show } from "../shared/dom.js";
import { CommandPanel, ElsewherePanel, TakeHomePanel } from "./elsewhere.js";
import { ForwardingLine, Progress, Tiles, QueuedPanel, Tab } from "./header/progress.js";
import { Header } from "./header/header.js";
import { CheckpointTable, EventList } from "./history.js";
import { LogPanel } from "./logs.js";
import { LookCloser } from "./look_closer/look_closer.js";
import { address, fetchJson, runAddress } from "../shared/net.js";
import { LIVE_STATES, worldSize } from "../shared/format.js";
import { projector, nameParts, sideBySide } from "./header/projector.js";
import { RanksPanel } from "./ranks.js";
import { RunStream } from "./stream.js";
import { TryPanel } from "./try/try_panel.js";
import { showError } from "../shared/dialog.js";
import { ConnectionNote } from "../shared/widgets.js";

const ASK_AGAIN_MS = 2000;
// Update at 4 Hz: layout is costly.
const NUMBERS_EVERY_MS = 250;

/**
 * Fills an element with the page of the run (or the two runs) in the URL; returns a function that unmounts
 * it.
 */
export function mountRun(root) {
  const query = new URLSearchParams(window.location.search);
  const [runId, other] = [query.get("id"), query.get("beside")];
  if (!runId) {
    root.replaceChildren(nothing("This address names no run.", "Choose one from the list of runs."));
    return () => {};
  }
  if (!other) return openRun(root, runId, true);
  const { element, places, end } = sideBySide([runId, other]);
  root.replaceChildren(element);
  const ends = [openRun(places[0], runId, false), openRun(places[1], other, false), end];
  return () => {
    for (const endOne of ends) endOne();
  };
}

/** Opens a run; retries while the server does not respond. Returns a function that unmounts it. */
function openRun(root, runId, isAlone) {
  root.replaceChildren(el("div", { class: "ddp ddp-loading", role: "status" }, `Opening ${runId} …`));
  let page = null;
  let isClosed = false;
  const open = async () => {
    if (isClosed) return;
    try {
      const summary = await fetchSummary(runId);
      if (isClosed) return;
      page = new RunPage(root, runId, summary, isAlone, () => {
        // Asked again after a while: a proxy whose server restarts may answer 404 as well.
        page.close();
        page = null;
        setTimeout(open, ASK_AGAIN_MS);
      });
      if (!isAlone) nameParts(root);
    } catch (error) {
      if (isClosed) return;
      root.replaceChildren(unreadable(runId, error));
      if (error.status !== 404) setTimeout(open, ASK_AGAIN_MS);
    }
  };
  open();
  return () => {
    isClosed = true;
    page?.close();
  };
}

async function fetchSummary(runId) {
  // The page sends this request before this script is loaded.
  const early = window.ddpEarlySummary;
  window.ddpEarlySummary = null;
  const answer = await early?.catch(() => null);
  return answer?.ok ? answer.json() : fetchJson(runAddress(runId, "summary"));
}

class RunPage {
  /**
   * `isAlone`: the run is not side by side with another, so it controls the tab's title and the projector
   * mode. `onGone()`: there seems to be no such run any more.
   */
  constructor(root, runId, summary, isAlone, onGone) {
    this.name = summary.name || summary.config.name || runId;
    this.deviceKind = null;
    this.gpus = [];
    const poke = () => this.stream.poke();
    this.header = new Header(runId, summary, poke);
    this.queued = new QueuedPanel(runId, poke);
    this.progress = new Progress(summary);
    this.insights = new InsightStrip(runId, summary.may_change, poke);
    this.forwarding = new ForwardingLine(runId, summary);
    this.tiles = new Tiles(summary);
    this.board = new Board(runId, summary, {
      onError: showError,
      onLook: (chosen) => this.lookAnew(chosen),
      onResume: summary.may_change ? poke : null,
    });
    this.axis = this.board.view.axis;
    const onToggle = () => this.noteOpenNodes();
    this.devices = new DevicesPanel(onToggle);
    this.ranksPanel = new RanksPanel(summary, onToggle);
    this.openNodes = initiallyOpenNodes(worldSize(summary.config), summary.config.num_nodes ?? 1);
    this.memory = new MemoryPanel(summary);
    this.sample = new SamplePanel();
    this.confusion = new ConfusionPanel(runId);
    this.tryIt = new TryPanel(runId, summary);
    this.takeHome = new TakeHomePanel(runId, summary);
    this.checkpoints = new CheckpointTable(runId, summary, poke);
    this.events = new EventList();
    this.closer = new LookCloser(runId, summary);
    this.script = summary.config.script ? new ScriptPanel(runId, summary) : null;
    this.logs = new LogPanel(runId, summary);
    this.command = new CommandPanel(summary);
    if (!this.script) this.command.element.append(new ElsewherePanel(runId).element);
    this.cards = this.cardsInTurn();
    this.tab = isAlone ? new Tab(this.name) : null;
    this.numbers = new Throttle(NUMBERS_EVERY_MS, () => this.showNumbers());
    this.loading = el("p", { class: "ddp-connection", role: "status", hidden: true });
    this.connection = new ConnectionNote();
    this.element = this.layOut(runId, summary);
    root.replaceChildren(this.element);
    this.endProjector = isAlone
      ? projector(this.header.projectorButton, () => afterPaint(() => this.board.redrawAll()))
      : () => {};
    this.stream = new RunStream(
      runId,
      { ...this.board.view, nodes: this.openNodes },
      (payload, bytes) => this.take(payload, bytes),
      (error) => (error?.status === 404 ? onGone() : this.connection.heard(error)),
    );
    this.stream.firstAnswer.then(() => this.board.begin());
  }

  /** The cards that take each message, in this order. @returns {{ element: HTMLElement, update: (news: any) => void }[]} */
  cardsInTurn() {
    const ofModel = this.script ? [this.script] : [this.takeHome, this.tryIt];
    const { queued, header, insights, devices, ranksPanel, memory, sample, confusion, checkpoints } = this;
    const first = [queued, header, insights, devices, ranksPanel, memory, sample, confusion, checkpoints];
    return [...first, this.forwarding, ...ofModel, this.events, this.command, this.closer, this.logs];
  }

  layOut(runId, summary) {
    // Without a confusion matrix the memory card takes its place.
    const hasConfusion = summary.first_metric === "accuracy";
    const isScript = this.script !== null;
    const layout = summary.is_live ? "ddp-keeps-room" : "ddp-awaits-all";
    const stack = (...cards) => el("div", { class: "ddp-stack" }, cards);
    const pair = (...parts) => el("div", { class: "ddp-pair" }, parts);
    const predictions = isScript ? this.events : this.sample;
    const others = [hasConfusion ? null : this.memory, isScript ? null : this.confusion];
    return el(
      "div",
      { class: `ddp ddp-run-page ${isScript ? "ddp-of-script " : ""}${layout}` },
      this.connection,
      this.loading,
      this.header,
      this.queued,
      this.progress,
      this.forwarding,
      this.insights,
      this.script,
      this.tiles,
      el("h2", { class: "ddp-unseen" }, "Charts"),
      this.board,
      this.devices,
      pair(stack(this.ranksPanel, hasConfusion ? this.memory : null), stack(predictions, others)),
      isScript ? null : this.tryIt,
      ...(isScript ? [this.checkpoints] : [pair(this.checkpoints, this.takeHome), this.events]),
      this.closer,
      this.logs,
      new ConfigurationPanel(runId, isScript),
      isScript ? null : runAsCode(runId),
      this.command,
    );
  }

  lookAnew(poke) {
    // The range of a zoom is meaningless on another axis.
    if (poke.axis !== this.axis) this.board.unzoomAll();
    this.axis = poke.axis;
    this.stream.setView({ ...poke, nodes: this.openNodes });
  }

  /** With many ranks, the server sends only those of open nodes. */
  noteOpenNodes() {
    if (this.openNodes === undefined) return;
    const open = [...new Set([...this.devices.groups.open(), ...this.ranksPanel.groups.open()])];
    open.sort((a, b) => a - b);
    if (open.join() === this.openNodes.join()) return;
    this.openNodes = open;
    this.stream.setView({ ...this.board.view, nodes: open });
  }

  take(payload, bytes) {
    this.noteLoading(payload.loading);
    if (payload.type === "loading") return;
    const { head, devices, type } = payload;
    this.element.classList.remove("ddp-awaits-all");
    guarded(this.board.element, () => this.board.take(payload, bytes));
    if (devices?.length) {
      this.deviceKind = devices[0].kind;
      this.gpus = devices.filter(({ kind }) => kind === "cuda").map(({ index }) => index);
    }
    this.noteHead(head);
    const { deviceKind, gpus } = this;
    const known = { deviceKind, gpus, best: head.best?.step ?? null, traces: this.board.traces };
    const news = { ...payload, ...known, nodes: nodeRows(payload.nodes), isSnapshot: type === "snapshot" };
    for (const card of this.cards) guarded(card.element, () => card.update(news));
    if (this.board.traces.isTooLong()) this.stream.refresh();
  }

  /** Shows a new state immediately; numbers are throttled. */
  noteHead(head) {
    const isOtherState = head.state !== this.head?.state;
    this.head = head;
    // The page was opened after the run had ended, and the run was resumed since.
    if (LIVE_STATES.has(head.state)) this.element.classList.add("ddp-keeps-room");
    if (isOtherState) this.numbers.now();
    else this.numbers.soon();
  }

  showNumbers() {
    guarded(this.progress.element, () => this.progress.update(this.head));
    guarded(this.tiles.element, () => this.tiles.update(this.head));
    this.tab?.update(this.head);
  }

  /** Shows how much of a long event file has been read, while the page shows a preview. */
  noteLoading(share) {
    const isLoading = typeof share === "number" && share < 1;
    show(this.loading, isLoading);
    if (isLoading) setText(this.loading, `Preview. Reading the complete run: ${Math.round(100 * share)}% …`);
  }

  close() {
    this.endProjector();
    this.tab?.close();
    const { queued, forwarding, numbers, stream, board, sample, tryIt, takeHome, closer, logs } = this;
    const parts = [queued, forwarding, numbers, stream, board, sample, tryIt, takeHome, closer, logs];
    for (const part of parts) part.close();
  }
}

/** What is shown in place of a run that cannot be read. */
function unreadable(runId, { status, message }) {
  const bin = el("a", { href: address("runs?bin=1") }, "bin");
  const hints = status === 404 ? [["A deleted run stays in the ", bin, " until the bin is emptied."]] : [];
  return nothing(`The run ${runId} cannot be shown.`, message, ...hints);
}

function nothing(title, ...text) {
  const runs = el("p", {}, el("a", { href: address("runs") }, "All runs"));
  return el(
    "div",
    { class: "ddp ddp-nothing" },
    el("h1", {}, title),
    ...text.map((each) => el("p", {}, each)),
    runs,
  );
}
