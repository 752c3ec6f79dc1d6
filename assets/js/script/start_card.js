// How a script is started: entry file, ranks, options, interpreter, environment.

import { el, freeId, section, setText, show, showText } from "../shared/dom.js";
import { collapsed, optionsOf, textButton } from "../shared/widgets.js";
import { callEndpoint, runPage } from "../shared/net.js";

// Form fields for a script's options, and the command line that they stand for.

/** Quotes an argument as a shell does. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function argumentsOf(option, value) {
  return (option.is_list ? String(value).trim().split(/\s+/) : [String(value)]).map(quoted);
}

/** The command line of the options whose value differs from the default. */
export function commandLine(options, values) {
  const parts = [];
  for (const option of options) {
    const value = values[option.flag];
    if (option.kind === "switch") {
      if (value === true) parts.push(option.flag);
    } else if (option.is_positional) {
      if (value) parts.push(...argumentsOf(option, value));
    } else if (value !== "" && value !== undefined && String(value) !== String(option.default ?? "")) {
      parts.push(option.flag, ...argumentsOf(option, value));
    }
  }
  return parts.join(" ");
}

/** Fields for options; `onChange(line)` gets the command line after each change. */
class ArgumentFields {
  constructor(onChange) {
    this.options = [];
    this.inputs = new Map();
    this.onChange = onChange;
    this.element = el("div", { class: "ddp-script-options" });
  }

  show(options) {
    if (JSON.stringify(options) === JSON.stringify(this.options)) return;
    this.options = options;
    this.inputs.clear();
    this.element.replaceChildren(...options.map((option) => this.field(option)));
  }

  field(option) {
    const id = freeId(`ddp-option-${option.flag.replaceAll(/\W+/g, "-")}`);
    const input = optionInput(option, id);
    input.addEventListener("input", () => this.onChange(commandLine(this.options, this.values())));
    this.inputs.set(option.flag, input);
    const text = option.help ? el("small", { id: `${id}-help` }, option.help) : null;
    if (text) input.setAttribute("aria-describedby", `${id}-help`);
    const label = el("label", { for: id }, el("code", {}, option.flag));
    const isSwitch = option.kind === "switch";
    return el(
      "div",
      { class: isSwitch ? "ddp-switch" : null },
      isSwitch ? [input, label] : [label, input],
      text,
    );
  }

  values() {
    const valueOfInput = (input) => (input.type === "checkbox" ? input.checked : input.value);
    return Object.fromEntries([...this.inputs].map(([flag, input]) => [flag, valueOfInput(input)]));
  }
}

function optionInput(option, id) {
  if (option.kind === "switch") return el("input", { type: "checkbox", id });
  const { default: value = "", is_required: required } = option;
  if (option.kind === "choice") {
    const choices = option.choices.map((choice) => [choice, choice]);
    return el("select", { id }, optionsOf(choices, value ?? ""));
  }
  const inputmode = option.kind === "text" ? null : "decimal";
  return el("input", { id, type: "text", inputmode, value: value ?? "", required });
}

// Fields with the names of /start_script: name, label, help, and whether it names a path on this machine.
/** @type {[string, string, string, boolean][]} */
const TEXTS = [
  ["arguments", "Arguments", "The script's command line, as in a shell.", false],
  ["name", "Name of the run", "Optional.", false],
  ["environment", "Environment variables", "One NAME=VALUE a line.", false],
  ["python", "Python interpreter", "Another environment's python with torch 2.4 or newer. Empty: the one that trains every run here.", true],
  ["checkpoint_every_steps", "Checkpoint every … steps", "For a script with watch.save. Empty: only when Checkpoint or Stop is pressed.", false],
  ["folder", "Working folder", "If empty, a copy of the code's folder is used.", true],
]; // prettier-ignore
const STARTS = [
  ["torchrun", "torchrun: one process for each rank"],
  ["python", "python: the script starts its ranks"],
];

const EMPTY = "Nothing to start yet: paste, drop or open a script.";
const NO_EFFECT = "Requests for GPUs have no effect; each is listed on the run's page.";

export class StartCard {
  /** `code()` returns files and entry; `onEntry(name)` and `onCpu()` are called after a choice. */
  constructor(setup, { code, onEntry, onCpu }) {
    this.setup = setup;
    this.code = code;
    this.onCpu = onCpu;
    this.chosen = new Set();
    this.texts = Object.fromEntries(TEXTS.map(([name]) => [name, textField(name)]));
    this.options = new ArgumentFields((line) => {
      this.texts.arguments.value = line;
    });
    this.entry = el("select", { id: "ddp-script-entry", onchange: () => onEntry(this.entry.value) });
    const onStart = () => this.chosen.add("start");
    this.start = el("select", { id: "ddp-script-start", onchange: onStart }, optionsOf(STARTS));
    this.ranks = el("input", {
      id: "ddp-script-ranks",
      type: "number",
      min: 1,
      max: setup.most_ranks,
      value: setup.ranks,
      oninput: () => this.chosen.add("ranks"),
    });
    this.where = Object.fromEntries(setup.where.map((field) => [field.name, whereField(field)]));
    this.cpu = el("input", { type: "checkbox", id: "ddp-script-on-cpu", onchange: () => this.chooseCpu() });
    this.why = el("p", { class: "ddp-hint", role: "status" });
    this.problem = el("p", { class: "ddp-problem", role: "alert", hidden: true });
    this.pythonText = el("small", { role: "status" });
    const disabled = setup.refused !== null;
    this.button = textButton("Start", () => this.go(), "main", { id: "ddp-script-go", disabled });
    this.element = this.layOut();
  }

  layOut() {
    const { num_gpus: numGpus, most_ranks: mostRanks, may_name_paths: mayNamePaths } = this.setup;
    const [first, ...others] = TEXTS.filter(([, , , isPath]) => mayNamePaths || !isPath);
    /** @param {[string, string, string, boolean]} text */
    const field = ([name, label, help]) => labelled(label, this.texts[name], help);
    const ranksLabel = (numGpus ? "GPUs" : "CPU ranks") + (this.where.num_nodes ? " on each machine" : "");
    const where = (names) =>
      this.setup.where
        .filter(({ name }) => names.includes(name))
        .map(({ name, label, help }) => labelled(label, this.where[name], help));
    const folded = Object.keys(this.where).filter((name) => !["partition", "num_nodes"].includes(name));
    const check = textButton("Check the interpreter", () => this.checkPython(check), "small");
    const cpu = [this.cpu, el("label", { for: this.cpu.id }, "Run on CPU ranks"), el("small", {}, NO_EFFECT)];
    const rest = [others.map(field), mayNamePaths ? [check, this.pythonText] : null];
    return section(
      "Start",
      "script-start",
      this.why,
      labelled("Entry file", this.entry),
      labelled("Started as", this.start),
      labelled(ranksLabel, this.ranks, `1 to ${mostRanks}`),
      where(["partition", "num_nodes"]),
      folded.length > 0 ? collapsed(null, "Further settings of the job", where(folded)) : null,
      el("div", { class: "ddp-switch" }, cpu),
      this.options,
      field(first),
      collapsed(null, "Name, environment, interpreter, checkpoints", rest),
      this.problem,
      this.button,
    );
  }

  chooseCpu() {
    this.chosen.add("on_cpu");
    this.onCpu();
  }

  /** Takes the settings of a run, as /script_code returns them. */
  load(settings) {
    for (const [name, field] of Object.entries(this.texts)) field.value = settings[name] ?? field.value;
    for (const [name, field] of Object.entries(this.where)) setWhere(field, settings[name]);
    for (const name of ["ranks", "start"]) {
      if (settings[name]) {
        this[name].value = settings[name];
        this.chosen.add(name);
      }
    }
    if (settings.on_cpu !== undefined) {
      this.cpu.checked = settings.on_cpu;
      this.chosen.add("on_cpu");
    }
  }

  listFiles(names, entry) {
    const scripts = names.filter((name) => name.endsWith(".py")).map((name) => [name, name]);
    this.entry.replaceChildren(...optionsOf(scripts, entry));
  }

  /** Applies the settings found in the script, except those that the user has chosen. */
  take({ start, why, num_ranks: numRanks, options, marks, problem }, isEmpty) {
    setText(this.why, isEmpty ? EMPTY : (problem ?? why));
    this.button.disabled = isEmpty || this.setup.refused !== null;
    this.options.show(options);
    if (!this.chosen.has("start") && !problem) this.start.value = start;
    if (!this.chosen.has("ranks")) {
      const { ranks: usual, most_ranks: most } = this.setup;
      this.ranks.value = String(Math.min(numRanks ?? usual, most));
    }
    const asks = marks.some(({ level }) => level === "gpu");
    if (!this.chosen.has("on_cpu")) this.cpu.checked = asks && this.setup.num_gpus === 0;
  }

  /** The settings that were entered or chosen, as /start_script takes them. */
  settings() {
    const fields = Object.entries(this.where).map(([name, field]) => [name, valueOf(field)]);
    const settings = { ranks: Number(this.ranks.value), start: this.start.value, on_cpu: this.cpu.checked };
    return {
      ...Object.fromEntries(Object.entries(this.texts).map(([name, field]) => [name, field.value])),
      ...Object.fromEntries(fields),
      ...Object.fromEntries(Object.entries(settings).filter(([name]) => this.chosen.has(name))),
    };
  }

  async checkPython(button) {
    button.disabled = true;
    setText(this.pythonText, "Starting it …");
    try {
      const { python, torch, gpus, path } = await callEndpoint("check_python", this.texts.python.value);
      setText(this.pythonText, `${path}: Python ${python}, torch ${torch}, ${gpus} GPUs.`);
    } catch (error) {
      setText(this.pythonText, error.message);
    }
    button.disabled = false;
  }

  async go() {
    show(this.problem, false);
    this.button.disabled = true;
    try {
      const { run_id: runId } = await callEndpoint("start_script", {
        ...this.code(),
        ...this.settings(),
        ranks: Number(this.ranks.value),
        start: this.start.value,
        on_cpu: this.cpu.checked,
      });
      window.location.assign(runPage(runId));
    } catch (error) {
      showText(this.problem, error.message);
      this.button.disabled = false;
    }
  }
}

/** A control with its label and help. @param {string | null} help */
export function labelled(text, control, help = null) {
  const helpText = help ? el("small", {}, help) : null;
  return el("div", {}, el("label", { for: control.id }, text), control, helpText);
}

/** A control for a field that selects where a run trains. */
function whereField({ name, default: usual, choices, is_several: multiple, is_number: isNumber }) {
  const id = `ddp-script-${name}`;
  // The GPU types of the default partition may be none: then those of another one can be typed.
  const field = choices.some(([value]) => value !== "")
    ? el("select", { id, multiple }, optionsOf(choices))
    : el("input", { id, type: isNumber ? "number" : "text" });
  setWhere(field, usual);
  return field;
}

/** Selects a value, or several, one a line. */
function setWhere(field, value) {
  if (value === undefined) return;
  const values = String(value ?? "").split("\n");
  if (field.multiple) for (const option of field.options) option.selected = values.includes(option.value);
  else field.value = String(value ?? "");
}

function valueOf(field) {
  return field.multiple ? [...field.selectedOptions].map(({ value }) => value).join("\n") : field.value;
}

function textField(name) {
  const id = `ddp-script-${name}`;
  return name === "environment" ? el("textarea", { id, rows: 2 }) : el("input", { type: "text", id });
}
