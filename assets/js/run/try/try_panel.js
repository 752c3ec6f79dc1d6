// @ts-nocheck: the inputs of the kinds of models have no common type.
// The card "Try it": the model of a run answers to a user's own input, at any checkpoint.

import { fetchJson, PlainError, runAddress, address, posted } from "../../shared/net.js";
import { Answer, difference, History, Nearest } from "./answers.js";
import { INPUTS, option } from "./inputs.js";
import { stepName } from "../elsewhere.js";
import { el, icon, section, setText, show } from "../../shared/dom.js";
import { LIVE_STATES } from "../../shared/format.js";
import { optionsOf, paragraph, textButton } from "../../shared/widgets.js";
import { Writer } from "./writer.js";

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
  predict(inputs, step, numNearest = 0) {
    const request = { inputs, checkpoint_step: step, num_nearest: numNearest };
    return fetchJson(runAddress(this.runId, "model/predict"), posted(request));
  }

  /** Calls `onToken` with each token of a continued text; `signal` stops it. */
  async generate(options, step, onToken, signal) {
    const request = { ...posted({ ...options, checkpoint_step: step }), signal };
    const response = await fetch(runAddress(this.runId, "model/generate"), request);
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
class Newest {
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

const NUM_NEAREST = 8;
const MOST_COMPARED = 12; // checkpoints that are asked about the same input
const MOST_RUNS = 50; // runs that are offered to compare with
const OF_RUN = "run "; // before the id of another run
const WAIT_MS = 400; // without a new input, before other checkpoints are asked
const CAPTION =
  "Give the model of this run an input of your own, and see its answer. The slider selects an earlier checkpoint; a second checkpoint, or another run, can answer next to it.";
const NONE_YET = "There is no checkpoint yet: the model can be tried as soon as one is saved.";

export class TryPanel {
  constructor(runId, summary) {
    this.model = new Model(runId);
    this.summary = summary;
    this.runs = []; // other runs of this task that the user may see
    this.requests = new Newest();
    this.isLive = summary.is_live;
    this.steps = [];
    this.best = null;
    this.chosen = null; // a step, or null for the latest
    this.isOpen = false;
    this.answers = new Map();
    this.question = 0;
    this.timer = 0;
    this.text = paragraph("empty", NONE_YET);
    this.button = textButton("Try this model", () => this.open(), "", { hidden: true });
    this.failure = el("p", { class: "ddp-try-failure", role: "alert", hidden: true });
    this.body = el("div", { class: "ddp-try-body", hidden: true });
    const caption = paragraph("caption", CAPTION);
    this.element = section("Try it", "try", caption, this.text, this.button, this.failure, this.body);
    this.buildSteps();
    // Opened when it is about to be visible; during training only on request.
    this.watcher = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting) && !this.isLive && this.steps.length > 0) this.open();
    });
    this.watcher.observe(this.element);
    this.isGettingReady = false;
    for (const event of ["pointerenter", "focusin"]) {
      this.element.addEventListener(event, () => this.getReady());
    }
  }

  buildSteps() {
    const oninput = () => this.choose(this.steps[Number(this.slider.value)] ?? null);
    this.slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "Checkpoint to try", oninput });
    this.stepText = el("output", {});
    this.otherChoice = el("select", { onchange: () => this.choose(this.chosen) });
    this.otherRow = option("compare with", this.otherChoice);
    const steps = option("checkpoint", this.slider, this.stepText);
    this.stepRow = el("div", { class: "ddp-try-steps" }, steps, this.otherRow);
  }

  /** `best` is the step of the best evaluation so far, or null. */
  update({ checkpoints, head, best }) {
    this.isLive = LIVE_STATES.has(head.state);
    this.best = best;
    if (checkpoints) {
      this.steps = checkpoints.map(({ step }) => step).sort((a, b) => a - b);
      this.latest = [...checkpoints].sort((a, b) => a.saved_unix_s - b.saved_unix_s).at(-1)?.step ?? null;
    }
    const hasAny = this.steps.length > 0;
    this.element.toggleAttribute("data-opens", hasAny && (this.isOpen || !this.isLive));
    if (!this.isLive) this.getReady();
    show(this.text, !hasAny && !this.isOpen);
    show(this.button, hasAny && !this.isOpen);
    if (hasAny && !this.isOpen && !this.isLive && this.isInSight()) this.open();
    this.showSteps();
  }

  /** Importing torch takes the server more than a second: it begins before the card is opened. */
  getReady() {
    if (this.isGettingReady || this.steps.length === 0) return;
    this.isGettingReady = true;
    this.model.getReady();
  }

  isInSight() {
    const { top, bottom } = this.element.getBoundingClientRect();
    return bottom > 0 && top < window.innerHeight;
  }

  /** What answers: the chosen checkpoint, and the checkpoint or run to compare with, each with its name. */
  get sources() {
    const chosen = { model: this.model, step: this.step, name: this.nameOf(this.step) };
    const { other } = this;
    if (other === null) return [chosen];
    if (typeof other === "number") {
      return [chosen, { model: this.model, step: other, name: this.nameOf(other) }];
    }
    const run = this.runs.find(({ run_id: id }) => id === other);
    return [
      { ...chosen, name: `${this.summary.name || this.model.runId}, ${chosen.name}` },
      { model: new Model(other), step: null, name: `${run?.name || other}, latest checkpoint` },
    ];
  }

  /** Other runs of this task; tables of the same bundled data, because others have other columns. */
  async findRuns() {
    const { task, config } = this.summary;
    try {
      const rows = await fetchJson(address("live/runs"));
      const isOther = (row) => row.run_id !== this.model.runId && row.step > 0;
      this.runs = rows
        .filter((row) => isOther(row) && task !== null && row.task === task)
        .filter((row) => !task.startsWith("tabular") || (row.dataset === config.dataset && !config.data_path))
        .slice(0, MOST_RUNS);
      this.showSteps();
    } catch (error) {
      this.fail(`The list of runs to compare with could not be read: ${error.message}`);
    }
  }

  get step() {
    return this.chosen !== null && this.steps.includes(this.chosen) ? this.chosen : (this.latest ?? null);
  }

  /** The step of the checkpoint, or the id of the run, that answers next to the chosen checkpoint; or null. */
  get other() {
    const { value } = this.otherChoice;
    if (value.startsWith(OF_RUN)) return value.slice(OF_RUN.length);
    const step = value === "" ? null : Number(value);
    return step === this.step ? null : step;
  }

  nameOf(step) {
    return stepName(step, this.latest, this.best);
  }

  showSteps() {
    const position = this.steps.indexOf(this.step);
    show(this.stepRow, this.steps.length > 0);
    this.slider.max = String(Math.max(0, this.steps.length - 1));
    this.slider.value = String(position);
    this.slider.disabled = this.steps.length < 2;
    setText(this.stepText, this.nameOf(this.step));
    show(this.otherRow, this.steps.length > 1 || this.runs.length > 0);
    const steps = this.steps.map((step) => [String(step), this.nameOf(step)]);
    const runs = this.runs.map((row) => [
      `${OF_RUN}${row.run_id}`,
      `${row.name || row.run_id} (${row.model_label})`,
    ]);
    // An open list closes when its options are replaced.
    const offered = [...this.otherChoice.options].map(({ value, text }) => [value, text]);
    if ([["", "nothing"], ...steps, ...runs].join() === offered.join()) return;
    const compared = this.otherChoice.value;
    const group = (label, pairs) => el("optgroup", { label }, optionsOf(pairs, compared));
    this.otherChoice.replaceChildren(
      ...optionsOf([["", "nothing"]]),
      group("Checkpoints of this run", steps),
      ...(runs.length > 0 ? [group("Other runs, at their latest checkpoint", runs)] : []),
    );
  }

  choose(step) {
    this.chosen = step;
    this.showSteps();
    if (this.writer) this.writer.again();
    else this.ask(false);
  }

  async open() {
    if (this.isOpen) return;
    this.isOpen = true;
    show(this.button, false);
    show(this.text, true);
    setText(this.text, "Starting the model …");
    try {
      const { about } = await this.model.describe(this.step);
      this.build(about);
      this.findRuns();
      show(this.text, false);
      show(this.body, true);
      this.fail(null);
    } catch (error) {
      this.isOpen = false;
      show(this.text, false);
      this.fail(error.message);
      setText(this.button, "Try again");
      show(this.button, true);
      this.watcher.disconnect(); // from now on only on request
    }
  }

  build(about) {
    if (about.task === "language_modelling") {
      this.writer = new Writer(about, () => this.sources);
      this.body.replaceChildren(this.stepRow, this.writer.element);
      return;
    }
    const onInput = () => this.ask(true);
    this.inputs = new INPUTS[about.input.kind](about, onInput);
    this.answer = new Answer();
    this.otherAnswer = new Answer();
    this.history = new History((step) => this.choose(step));
    this.nearest = new Nearest(() => this.ask(false));
    this.pair = el("div", { class: "ddp-try-answers" }, this.answer);
    this.differs = el("p", { class: "ddp-hint ddp-try-differs", role: "status" });
    this.body.replaceChildren(
      el(
        "div",
        { class: "ddp-try-pair" },
        el("div", {}, this.inputs, this.answer.seen),
        el("div", {}, this.stepRow, this.pair, this.differs, this.history, this.nearest),
      ),
    );
    this.ask(true);
  }

  /** Asks the chosen checkpoint; `isNew`: the input differs from the previous one. */
  ask(isNew) {
    const inputs = this.inputs.input();
    if (isNew) {
      this.question += 1;
      this.answers = new Map();
      this.ofRuns = new Map();
    }
    clearTimeout(this.timer);
    if (inputs === null || this.other === null) {
      this.otherAnswer.element.remove();
      setText(this.differs, "");
    } else if (!this.otherAnswer.element.isConnected) this.pair.append(this.otherAnswer.element);
    if (inputs === null) {
      this.answer.clear("The answer appears here, as soon as there is an input.");
      this.history.update(this.answers, [], null);
      return;
    }
    const { question } = this;
    this.requests.want(async () => {
      try {
        const { step, sources } = this;
        const answer = await this.answerOf(sources[0], inputs);
        if (question !== this.question) return;
        this.answer.update(answer, sources.length > 1 ? sources[0].name : "");
        if (sources.length === 1) setText(this.differs, "");
        this.history.update(this.answers, this.compared(), step);
        this.fail(null);
        if (sources.length > 1) await this.askOther(sources, inputs, answer, question);
        if (question !== this.question) return;
        if (this.nearest.isOpen) await this.askNearest(inputs, step);
        this.timer = window.setTimeout(() => this.askOthers(inputs, question), WAIT_MS);
      } catch (error) {
        this.fail(error.message);
      }
    });
  }

  /** The answer of a checkpoint or a run, asked once for each input. */
  async answerOf({ model, step }, inputs) {
    const [answers, key] = model === this.model ? [this.answers, step] : [this.ofRuns, model.runId];
    const answer = answers.get(key) ?? (await model.predict(inputs, step));
    answers.set(key, answer);
    return answer;
  }

  /** Shows a second answer, or its error, next to the first. */
  async askOther([first, second], inputs, found, question) {
    try {
      const other = await this.answerOf(second, inputs);
      if (question !== this.question || this.other === null) return;
      this.answer.update(found, first.name, other);
      this.otherAnswer.update(other, second.name, found);
      setText(this.differs, difference(found, other));
    } catch (error) {
      if (question !== this.question) return;
      this.otherAnswer.clear(`${second.name} cannot answer: ${error.message}`);
      setText(this.differs, "");
    }
  }

  async askNearest(inputs, step) {
    try {
      const { nearest } = await this.model.predict(inputs, step, NUM_NEAREST);
      this.nearest.update(nearest);
    } catch (error) {
      this.nearest.fail(error.message);
    }
  }

  /** The checkpoints that are asked about each input: all, or some that are evenly spaced. */
  compared() {
    const { steps } = this;
    if (steps.length <= MOST_COMPARED) return steps;
    const places = Array.from({ length: MOST_COMPARED }, (_, index) =>
      Math.round((index * (steps.length - 1)) / (MOST_COMPARED - 1)),
    );
    return [...new Set([...places.map((position) => steps[position]), this.step])].sort((a, b) => a - b);
  }

  /** Asks the other checkpoints about the same input, one by one, until there is another. */
  askOthers(inputs, question) {
    const missing = this.compared().filter((step) => !this.answers.has(step));
    const next = missing.at(-1);
    if (next === undefined || question !== this.question) return;
    this.requests.want(async () => {
      if (question !== this.question) return;
      try {
        this.answers.set(next, await this.model.predict(inputs, next));
      } catch {
        return; // deleted since: the list of checkpoints shows it
      }
      if (question !== this.question) return;
      this.history.update(this.answers, this.compared(), this.step);
      this.timer = window.setTimeout(() => this.askOthers(inputs, question), 0);
    });
  }

  fail(text) {
    this.failure.replaceChildren(...(text === null ? [] : [icon("warning"), ` ${text}`]));
    show(this.failure, text !== null);
  }

  close() {
    clearTimeout(this.timer);
    this.watcher.disconnect();
    this.writer?.close();
  }
}
