// Taking a run elsewhere: a zip with the model, and files that start the run on other machines.

import { installLine } from "../machine/install.js";
import {
  CommandLine,
  buttonLink,
  buttonRow,
  collapsed,
  copyButton,
  offerOptions,
  paragraph,
  textButton,
} from "../shared/widgets.js";
import { el, freeId, section, setText, show } from "../shared/dom.js";
import { bytes, count, LIVE_STATES, worldSize } from "../shared/format.js";
import { rerunAddress, callEndpoint, fetchJson, runAddress, pause } from "../shared/net.js";

const ASK_EVERY_MS = 500;
const BROKEN = "This run was broken on purpose, so its model is not useful and cannot be downloaded.";
const NONE_YET = "There is no checkpoint yet: the model can be taken home as soon as one is saved.";
const FURTHER =
  "Opens the form: a new run starts with the weights of this checkpoint, on data that you choose";
const WHAT =
  "One zip to use the model on any computer: weights, the network for torch and as ONNX, labels and preprocessing, a script that runs it on a file, a page that runs it in any browser, and a model card.";

export class TakeHomePanel {
  /** @param {string} runId @param {{ mistake: unknown }} summary */
  constructor(runId, { mistake }) {
    this.runId = runId;
    this.isBroken = Boolean(mistake);
    this.isClosed = false;
    this.note = paragraph("empty", this.isBroken ? BROKEN : NONE_YET);
    const onchange = () => this.chooseOther();
    this.choice = el("select", { class: "ddp-wide", "aria-label": "Checkpoint to take home", onchange });
    this.button = textButton("Take it home", () => this.pack());
    this.further = buttonLink("Train further on other data", { title: FURTHER });
    this.progress = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Packing the model" });
    this.status = el("p", { class: "ddp-hint", role: "status" });
    this.link = buttonLink("", { hidden: true, download: "" }, "main");
    this.page = buttonLink("Only try.html", { hidden: true, download: "" });
    const again = installLine("onnx_export", "press “Take it home” again for a zip with model.onnx.");
    this.install = el("div", { hidden: true }, again);
    this.code = new CommandLine("", "load the model in plain PyTorch");
    const where = paragraph("hint", "Run this in the unpacked folder. Our source code is not needed:");
    this.fold = collapsed("ddp-try-fold", "In plain PyTorch", where, this.code);
    this.fold.addEventListener("toggle", () => this.showCode());
    this.body = el(
      "div",
      { hidden: true },
      paragraph("caption", WHAT),
      buttonRow(this.choice, this.button, this.link, this.page, this.further),
      this.progress,
      this.status,
      this.install,
      runLink(runId),
      this.fold,
    );
    this.element = section("Use this model", "take-home", this.note, this.body);
  }

  /** `best` is the step of the best evaluation so far, or null. */
  update({ checkpoints, best }) {
    if (!checkpoints || this.isBroken) return;
    const newest = [...checkpoints].sort((a, b) => b.saved_unix_s - a.saved_unix_s);
    const latest = newest[0]?.step;
    offerOptions(
      this.choice,
      newest.map(({ step }) => [step, stepName(step, latest, best)]),
    );
    this.aim();
    show(this.note, newest.length === 0);
    show(this.body, newest.length > 0);
  }

  chooseOther() {
    this.aim();
    show(this.link, false);
    show(this.page, false);
    this.showCode();
  }

  /** The form for a run that starts from the chosen checkpoint. */
  aim() {
    const start = { start_from: `${this.runId}/${this.choice.value}`, name: "" };
    this.further.href = rerunAddress(this.runId, start);
  }

  async pack() {
    this.button.disabled = true;
    show(this.link, false);
    show(this.page, false);
    show(this.progress, true);
    try {
      let state = await callEndpoint("take_home", this.runId, Number(this.choice.value));
      while (state.state === "running" && !this.isClosed) {
        this.progress.max = state.of;
        this.progress.value = state.done;
        setText(this.status, `Packing: ${state.doing} …`);
        await pause(ASK_EVERY_MS);
        state = await callEndpoint("taken_home", state.take_home_id);
      }
      this.finish(state);
    } catch (error) {
      setText(this.status, `Not packed. ${error.message}`);
    }
    show(this.progress, false);
    this.button.disabled = false;
  }

  finish({ state, step, take_home_id: id, size_bytes: size, error, ...problems }) {
    if (state !== "done") {
      setText(this.status, `Not packed: ${error}`);
      return;
    }
    const { onnx_problem: noOnnx, page_problem: noPage } = problems;
    this.link.href = runAddress(this.runId, `take_home/${id}`);
    setText(this.link, `Download step ${count(step)}, ${bytes(size)}`);
    show(this.link, true);
    this.page.href = runAddress(this.runId, `take_home/${id}/try.html`);
    show(this.page, !noPage);
    show(this.install, Boolean(noOnnx));
    const withoutOnnx = `, without model.onnx and try.html: ${noOnnx}. The packages have about 46 MB`;
    const withoutPage = noPage ? `, without try.html: ${noPage}` : "";
    setText(this.status, `Packed${noOnnx ? withoutOnnx : withoutPage}.`);
  }

  async showCode() {
    if (!this.fold.open) return;
    this.code.update("Reading the description of the model …");
    try {
      const { code } = await fetchJson(runAddress(this.runId, "model", { step: this.choice.value }));
      this.code.update(code);
    } catch (error) {
      this.code.update(error.message);
    }
  }

  close() {
    this.isClosed = true;
  }
}

/** A checkpoint by its step, and whether it is the latest or the best. */
export function stepName(step, latest, best) {
  const notes = [step === latest ? "latest" : "", step === best ? "best" : ""].filter(Boolean).join(", ");
  return `step ${count(step)}${notes ? ` (${notes})` : ""}`;
}

// "Take this run elsewhere": files that start the run on other machines, in a collapsed section.

const STARTS_NEW =
  "Files that start a new run with these settings on other machines. The top of each file states what to change first.";

export class ElsewherePanel {
  constructor(runId) {
    this.runId = runId;
    this.rows = new Map();
    this.lastAsked = 0;
    this.machines = el("input", { type: "number", class: "ddp-input", min: 1, step: 1, required: true });
    this.gpus = el("input", { type: "checkbox" });
    for (const control of [this.machines, this.gpus]) control.addEventListener("change", () => this.ask());
    this.equation = el("p", { class: "ddp-caption", role: "status" }, "Reading …");
    this.fields = el(
      "div",
      { class: "ddp-elsewhere-fields", hidden: true },
      el("label", {}, el("span", {}, "Machines"), this.machines),
      el("label", {}, this.gpus, el("span", {}, "One GPU for each rank")),
    );
    this.list = el("ul", { class: "ddp-elsewhere-list" });
    const inside = [paragraph("caption", STARTS_NEW), this.fields, this.equation, this.list];
    this.element = collapsed("ddp-elsewhere", "Take this run elsewhere", inside);
    this.element.addEventListener("toggle", () => {
      if (this.element.open && this.rows.size === 0) this.ask();
    });
  }

  /** The chosen values as a query; empty until the server has sent its defaults. */
  query() {
    return this.rows.size === 0 ? {} : { num_nodes: this.machines.value, gpus: String(this.gpus.checked) };
  }

  async ask() {
    if (this.rows.size > 0 && !this.machines.reportValidity()) return;
    this.lastAsked += 1;
    const requestNumber = this.lastAsked;
    try {
      const plan = await fetchJson(runAddress(this.runId, "elsewhere", this.query()));
      if (requestNumber === this.lastAsked) this.fill(plan);
    } catch (error) {
      if (requestNumber === this.lastAsked) setText(this.equation, error.message);
    }
  }

  fill(plan) {
    this.machines.max = String(plan.max_nodes);
    this.machines.value = String(plan.num_nodes);
    this.gpus.checked = plan.gpus;
    show(this.fields, true);
    const machines = plan.num_nodes === 1 ? "1 machine" : `${count(plan.num_nodes)} machines`;
    const ranks = plan.num_ranks === 1 ? "1 rank" : `${count(plan.num_ranks)} ranks`;
    setText(this.equation, `${machines}: ${ranks} in all, a global batch of ${count(plan.global_batch)}.`);
    for (const file of plan.files) {
      const row = this.rows.get(file.name) ?? new FileRow(file);
      if (!this.rows.has(file.name)) this.list.append(row.element);
      this.rows.set(file.name, row);
      row.update(file, runAddress(this.runId, `elsewhere/${file.name}`, this.query()));
    }
  }
}

/** A file: its purpose, whether it was tested, and its text on demand. */
class FileRow {
  constructor({ label, what_for: whatFor, proof }) {
    const id = freeId(`ddp-elsewhere-${label.toLowerCase().replaceAll(" ", "-")}`);
    this.code = el("code", {});
    const shown = el(
      "details",
      {},
      el("summary", { "aria-label": `Show: ${label}` }, "Show"),
      el("pre", { tabindex: 0, role: "group", "aria-label": label }, this.code),
    );
    const aria = { "aria-label": `Download: ${label}` };
    this.download = buttonLink("Download", { download: "", ...aria }, "small");
    const copy = copyButton(() => this.text, this.code, label);
    const purpose = el("p", {}, el("strong", { id }, label), `. ${whatFor}`);
    const text = el("div", { class: "ddp-elsewhere-words" }, purpose, paragraph("caption", proof));
    this.element = el("li", { "aria-labelledby": id }, text, buttonRow(copy, this.download), shown);
  }

  update({ text }, href) {
    setText(this.code, text);
    this.text = text;
    this.download.href = href;
  }
}

/** A link to the zip of the whole run. */
function runLink(runId) {
  const title =
    "The run with its latest checkpoint: Import a run, on the page Runs, opens it on another machine";
  const href = runAddress(runId, "run.zip", { checkpoint: "true" });
  return el("p", {}, el("a", { href, download: "", title }, "Run as a zip"));
}

// "The command": the torchrun command of a run, and the equation that relates batch size, ranks and steps.

const AS_COMMAND =
  "This job as a command for any terminal of this computer: it trains a new run with the same settings. Start does the same, but imports torch once for all ranks, in advance if possible.";

/** The section with the commands, each with a Copy button, and the equation. */
export class CommandPanel {
  constructor(summary) {
    this.summary = summary;
    this.resume = new CommandLine("", "command to resume");
    const caption = paragraph("caption", "Resume it from its newest checkpoint:");
    this.resumePart = el("div", { hidden: true }, caption, this.resume);
    this.element = section(
      "The command",
      "the-command",
      paragraph("caption", AS_COMMAND),
      new CommandLine(summary.command),
      this.resumePart,
      summary.script ? scriptOf(summary) : null,
      summary.config.script ? null : equation(summary),
    );
  }

  /** A run that ended before its last step can also be resumed from a terminal. */
  update({ checkpoints, head }) {
    this.checkpoints = checkpoints ?? this.checkpoints;
    const newest = this.checkpoints?.[0]?.step;
    // A script is resumed on the page only.
    const isOurs = !this.summary.config.script;
    const isResumable =
      isOurs && !LIVE_STATES.has(head.state) && newest !== undefined && !(newest >= head.num_steps);
    show(this.resumePart, isResumable);
    if (!isResumable) return;
    const { text, placeholder } = this.summary.resume_command;
    this.resume.update(text.replace(placeholder, String(newest)));
  }
}

/** The submitted script in a collapsed section. */
function scriptOf({ script, run_dir: runDir }) {
  const text = `The submitted script: ${runDir}/job.sh. Submitting it with sbatch does the same.`;
  const code = new CommandLine(script, "job script");
  return collapsed("ddp-elsewhere", "This job as a script", paragraph("caption", text), code);
}

function equation({ config, num_replicas: copies, global_batch: all, steps_per_epoch: stepsPerEpoch }) {
  const term = (value, text) => el("span", {}, el("b", {}, count(value)), el("small", {}, text));
  const sign = (text) => el("i", {}, text);
  const ranksEach = worldSize(config) / copies;
  const accumulated = config.gradient_accumulation_steps;
  const copyWords = copies === 1 ? "model copy" : "model copies";
  return el(
    "div",
    { class: "ddp-equation" },
    term(config.batch_size, ranksEach === 1 ? "per rank" : "per copy"),
    sign("×"),
    ranksEach === 1
      ? term(copies, copies === 1 ? "rank" : "ranks")
      : term(copies, `${copyWords}, ${ranksEach} ranks each`),
    accumulated > 1 ? [sign("×"), term(accumulated, "accumulated")] : null,
    sign("="),
    term(all, "global batch"),
    stepsPerEpoch ? [sign("→"), term(stepsPerEpoch, "steps per epoch")] : null,
  );
}
