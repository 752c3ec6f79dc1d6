// The header of the run page: name, state and buttons, and the options of Resume.

import { whyNot } from "../../auth/person.js";
import { brokenBadge } from "../../runs/columns.js";
import { importedBadge, importedText } from "../../runs/actions.js";
import { act } from "../../shared/dialog.js";
import { el, enable, freeId, makeButton, setAttribute, setText, show } from "../../shared/dom.js";
import { LIVE_STATES, count, isLossNaN, ranks, worldSize } from "../../shared/format.js";
import { runPage } from "../../shared/net.js";
import { StatePill, offerOptions, optionsOf, paragraph, textButton } from "../../shared/widgets.js";
import { headerTools } from "./projector.js";

// The options of Resume; on a phone a button shows them.

/** Returns the button, which is visible only on phones, and the box of these controls. */
function resumeOptions(...controls) {
  const id = freeId("ddp-resume-options");
  const set = (isOpen) => {
    setAttribute(unfold, "aria-expanded", String(isOpen));
    options.classList.toggle("ddp-unfolded", isOpen);
  };
  const onkeydown = (event) => {
    if (event.key !== "Escape") return;
    set(false);
    unfold.focus();
  };
  const options = el("div", { class: "ddp-resume-options", id, onkeydown }, controls);
  const onclick = () => set(unfold.getAttribute("aria-expanded") !== "true");
  const aria = { "aria-label": "What Resume starts from", "aria-expanded": "false", "aria-controls": id };
  const unfold = makeButton({ class: "ddp-more-button ddp-unfold", onclick, ...aria }, "⋯");
  return [unfold, options];
}

const ENDED = "The run has ended.";
const DOES_NOT_SAVE = "The script has not called watch.load(…) and watch.save(…).";
const DEFAULT_MORE_EPOCHS = 10;
const MAX_MORE_EPOCHS = 100_000;

export class Header {
  /** `afterAction()` is called after a click was processed. */
  constructor(runId, summary, afterAction) {
    this.runId = runId;
    this.summary = summary;
    this.afterAction = afterAction;
    this.pill = new StatePill();
    this.ranks = el("span", {}, ranks(worldSize(summary.config), null));
    this.buttons = {
      stop: this.button("Stop", "stop", () => ["stop_run", runId, this.savesOnStop]),
      checkpoint: this.button("Checkpoint", "", () => ["checkpoint_run", runId]),
      pause: this.button("Pause", "", () => ["pause_run", runId]),
      resume: this.button("Resume", "main", () => {
        const [epochs, from] = [this.moreEpochs(), [this.chosenStep(), ...this.chosenRanks()]];
        return epochs === null ? ["resume_run", runId, ...from] : ["train_more", runId, epochs, ...from];
      }),
    };
    const onchange = () => this.refresh();
    const ofRanks = { "aria-label": "Number of ranks to resume with", onchange };
    this.numRanks = el("select", ofRanks, optionsOf(this.rankOptions()));
    const batches = [["keep", "same global batch"], ["rescale", "same batch per rank"]]; // prettier-ignore
    this.batch = el("select", { "aria-label": "How the batch changes" }, optionsOf(batches));
    this.on = el("label", { class: "ddp-from" }, el("span", {}, "on"), this.numRanks, this.batch);
    this.epochs = el("input", {
      type: "number",
      class: "ddp-input",
      min: 1,
      max: MAX_MORE_EPOCHS,
      value: DEFAULT_MORE_EPOCHS,
      "aria-label": "Epochs to train more",
      oninput: onchange,
    });
    this.more = el("label", { class: "ddp-from ddp-more" }, "for", this.epochs, "more epochs");
    const ofCheckpoint = { "aria-label": "Checkpoint to resume from", onchange };
    this.select = el("select", { class: "ddp-wide", ...ofCheckpoint });
    this.setCheckpoints([], null);
    this.from = el("label", { class: "ddp-from" }, el("span", {}, "from"), this.select);
    const tools = headerTools(runId);
    this.projectorButton = tools.projectorButton;
    this.element = this.layOut(summary, tools.element);
    this.state = "queued";
    this.isScript = Boolean(summary.config.script);
    /** Whether a script has called the functions that save and load. */
    this.scriptSaves = false;
    this.savesOnStop = true;
    this.refresh();
  }

  layOut(summary, tools) {
    const name = summary.name || summary.config.name || this.runId;
    return el(
      "header",
      { class: "ddp-header" },
      el(
        "div",
        { class: "ddp-title" },
        el("h1", {}, name),
        this.pill,
        brokenBadge(summary.mistake),
        importedBadge(summary.imported),
        el(
          "p",
          { class: "ddp-subtitle" },
          `${summary.model_label}${sizeText(summary)} · ${summary.dataset_label} · `,
          this.ranks,
          summary.config.strategy === "ddp" ? null : ` · ${summary.strategy_label}`,
          name === this.runId ? null : ` · ${this.runId}`,
          summary.owner ? ` · of ${summary.owner}` : null,
          startedFrom(summary.start),
        ),
        tools,
      ),
      this.layOutActions(summary),
    );
  }

  layOutActions({ may_change: mayChange, owner, config, imported }) {
    this.hint = paragraph("hint");
    // Its engine and its data are those of another machine.
    if (imported) {
      return el("p", { class: "ddp-not-mine" }, `${importedText(imported)} It is not continued here.`);
    }
    if (!mayChange) return el("p", { class: "ddp-not-mine" }, whyNot(owner));
    return el(
      "div",
      { class: "ddp-actions" },
      el(
        "div",
        { class: "ddp-buttons", role: "group", "aria-label": "Actions for this run" },
        this.buttons.stop,
        this.buttons.checkpoint,
        // A script cannot be paused, continues on as many ranks, and decides how long it trains.
        config.script ? null : this.buttons.pause,
        this.buttons.resume,
        resumeOptions(this.from, ...(config.script ? [] : [this.on, this.more])),
      ),
      this.hint,
    );
  }

  button(word, variant, call) {
    const click = async (event) => {
      this.keyed = null;
      const changesRun =
        button === this.buttons.resume && (this.chosenRanks()[0] !== null || this.moreEpochs() !== null);
      const worked = await act(button, ...call());
      // Another number of ranks or epochs changes the configuration: reload the page.
      if (worked && changesRun) window.location.reload();
      // `detail` is 0 for a click by keyboard. Set only after the response, because until then the button is
      // disabled as busy.
      this.keyed = event.detail === 0 ? button : null;
      this.refresh();
      this.afterAction();
    };
    const button = textButton(word, click, variant);
    return button;
  }

  /** `gpus`: the GPU indices of a run on a single machine; ignored for several machines. */
  update({ head, marks, checkpoints, script, deviceKind, best, gpus }) {
    this.noteMarks(marks);
    if (script) this.scriptSaves = Boolean(script.saves);
    this.state = head.state;
    this.pill.update(head.state, isLossNaN(head), head.detail);
    const which = gpus.length > 0 ? ` (GPU ${gpus.join(", ")})` : "";
    const where = head.num_nodes > 1 ? ` on ${count(head.num_nodes)} machines` : which;
    setText(this.ranks, ranks(worldSize(this.summary.config), deviceKind) + where);
    if (checkpoints || best !== this.best) this.setCheckpoints(checkpoints ?? this.checkpoints, best);
    this.refresh();
  }

  /** If a stop was refused because saving failed, offer to stop without saving. */
  noteMarks(marks) {
    for (const mark of marks) {
      if (mark.kind === "command" && mark.name === "stop" && !mark.accepted) this.savesOnStop = false;
      if (mark.kind === "checkpoint") this.savesOnStop = true;
    }
    setText(this.buttons.stop, this.savesOnStop ? "Stop" : "Stop without saving");
  }

  setCheckpoints(checkpoints, best) {
    this.checkpoints = checkpoints;
    this.best = best;
    const options = checkpoints.map(({ step }, index) => {
      const text = `step ${count(step)}${step === best ? ", best" : ""}`;
      return index === 0 ? ["", `newest (${text})`] : [step, text];
    });
    offerOptions(this.select, options.length > 0 ? options : [["", "no checkpoint"]]);
  }

  /** The step to resume from; null for the latest checkpoint. */
  chosenStep() {
    return this.state === "paused" || this.select.value === "" ? null : Number(this.select.value);
  }

  rankOptions() {
    const { max_ranks: most, config } = this.summary;
    const numbers = Array.from({ length: Math.max(1, most) }, (_, index) => index + 1);
    const others = numbers.filter((number) => number !== config.nproc_per_node);
    const text = (number) => ranks(worldSize({ ...config, nproc_per_node: number }), null);
    const before = ["", `${text(config.nproc_per_node)}, as before`];
    return [before, ...others.map((number) => [number, text(number)])];
  }

  /** The number of ranks to resume with (null for the same number) and how the batch changes. */
  chosenRanks() {
    return this.state === "paused" || this.numRanks.value === ""
      ? [null, "keep"]
      : [Number(this.numRanks.value), this.batch.value];
  }

  /** True if Resume would continue from the end of a finished run; a script's end is not known. */
  isAtEnd() {
    return (
      !this.isScript && this.state === "finished" && this.checkpoints.length > 0 && this.select.value === ""
    );
  }

  /** The epochs to train after the end of the run; null if Resume only completes the configured run. */
  moreEpochs() {
    return this.isAtEnd() ? this.epochs.valueAsNumber : null;
  }

  refresh() {
    const isLive = LIVE_STATES.has(this.state);
    // Its space is reserved, so that the layout does not shift when the run ends.
    this.more.style.visibility = this.isAtEnd() ? "visible" : "hidden";
    show(this.batch, this.numRanks.value !== "");
    // Always visible, so that the layout does not shift under the pointer. Ranks can be changed only by a
    // restart.
    for (const select of [this.select, this.numRanks]) {
      setAttribute(select, "disabled", isLive || this.checkpoints.length === 0);
      setAttribute(select, "title", isLive ? "Can be chosen when the run has ended." : null);
    }
    this.enableButtons(isLive);
    this.keepFocus();
    setText(this.hint, this.hintText(isLive));
  }

  enableButtons(isLive) {
    const { state, buttons } = this;
    enable(
      buttons.stop,
      isLive && state !== "stopping",
      this.stopTitle(),
      state === "stopping" ? "The run is stopping already." : ENDED,
    );
    enable(
      buttons.checkpoint,
      (state === "running" || state === "paused") && this.canSave(),
      this.isScript
        ? "Saved at the script's next call of watch.save."
        : "Saves a checkpoint; training continues.",
      state === "running" && !this.canSave()
        ? DOES_NOT_SAVE
        : this.whyNotNow("The run is stopping and saves automatically."),
    );
    enable(
      buttons.pause,
      state === "running",
      "All ranks wait after the next step they agree on, and keep their memory.",
      state === "paused" ? "The run is paused already." : this.whyNotNow("The run is stopping."),
    );
    setText(buttons.resume, this.isAtEnd() ? "Train more" : "Resume");
    enable(
      buttons.resume,
      this.canResume(),
      state === "paused" ? "Continues training." : "Starts torchrun again from the chosen checkpoint.",
      this.whyNoResume(),
    );
  }

  /**
   * Moves the focus from a button that was pressed by keyboard and is now disabled to the most likely next
   * button.
   */
  keepFocus() {
    if (!this.keyed?.disabled || document.activeElement !== document.body) return;
    const { resume, pause, checkpoint, stop } = this.buttons;
    const next = [resume, pause, checkpoint, stop].find((button) => !button.disabled);
    if (!next) return;
    this.keyed = null;
    next.focus({ preventScroll: true });
  }

  canSave() {
    return !this.isScript || this.scriptSaves;
  }

  stopTitle() {
    if (this.state === "queued") return "Removes the run from the queue.";
    if (!this.canSave()) return "Ends the script: when it asks watch.should_stop(), or else by SIGTERM.";
    return this.savesOnStop
      ? "Saves a checkpoint first, then ends the run. Resume continues from there."
      : "Ends the run; unsaved progress is lost.";
  }

  /**
   * The reason why a button that needs a training run is disabled; `whileStopping` is the reason while
   * stopping.
   */
  whyNotNow(whileStopping) {
    if (this.state === "queued") return "The run is in the queue.";
    if (this.state === "starting") return "The run has not started training yet.";
    return LIVE_STATES.has(this.state) ? whileStopping : ENDED;
  }

  hintText(isLive) {
    if (this.state === "paused") return "Paused: the ranks wait and keep their memory. Resume continues.";
    if (this.state === "queued") {
      return "The run starts automatically when its turn comes. Stop removes it from the queue.";
    }
    if (isLive && !this.savesOnStop) {
      return "Nothing could be saved: free some space and press Checkpoint, or stop without saving.";
    }
    if (isLive && !this.canSave()) return `Checkpoint and Resume: ${DOES_NOT_SAVE}`;
    if (isLive) return "Stop saves a checkpoint first. Closing this page does not affect the run.";
    if (!this.canResume()) return this.whyNoResume();
    return this.isAtEnd() ? this.summary.more_epochs : "Resume starts again from a checkpoint.";
  }

  canResume() {
    return this.state === "paused" || (!LIVE_STATES.has(this.state) && this.whyNoResume() === "");
  }

  whyNoResume() {
    if (LIVE_STATES.has(this.state)) return "The run is live.";
    if (this.checkpoints.length === 0) {
      return `There is no checkpoint to resume from.${this.canSave() ? "" : ` ${DOES_NOT_SAVE}`}`;
    }
    const number = this.moreEpochs();
    return number === null || (Number.isInteger(number) && number >= 1 && number <= MAX_MORE_EPOCHS)
      ? ""
      : `More epochs: a whole number from 1 to ${count(MAX_MORE_EPOCHS)}.`;
  }
}

/** Describes the number of parameters, and of the trained ones if some are frozen. */
function sizeText({ num_parameters: all, num_trained: trained }) {
  if (!all) return "";
  return (trained ?? all) === all
    ? ` (${count(all)} parameters)`
    : ` (${count(trained)} of ${count(all)} parameters are trained)`;
}

/** Describes the checkpoint that a run started from, and its new layers; empty for a new model. */
function startedFrom(start) {
  if (!start) return [];
  const before = "started from run ";
  const after = start.words.slice(before.length + start.run_id.length);
  const name = start.is_there ? el("a", { href: runPage(start.run_id) }, start.run_id) : start.run_id;
  const gone = start.is_there ? null : " (it is not there any more, or not visible to you)";
  return [` · ${before}`, name, after, gone];
}

/**
 * Restarts a run from the checkpoint of a step; returns true if the request succeeded.
 * @param {HTMLButtonElement} button
 * @param {string} runId
 * @param {number} step
 */
export function resumeFrom(button, runId, step) {
  return act(button, "resume_run", runId, step, null, "keep");
}
