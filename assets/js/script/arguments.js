// Form fields for a script's options, and the command line that they stand for.

import { el, freeId } from "../shared/dom.js";

/** Quotes an argument as a shell does. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** The command line of the options whose value differs from the default. */
export function commandLine(options, values) {
  const parts = [];
  for (const option of options) {
    const value = values[option.flag];
    if (option.kind === "switch") {
      if (value === true) parts.push(option.flag);
    } else if (option.is_positional) {
      if (value) parts.push(quoted(String(value)));
    } else if (value !== "" && value !== undefined && String(value) !== String(option.default ?? "")) {
      parts.push(option.flag, quoted(String(value)));
    }
  }
  return parts.join(" ");
}

/** Fields for options; `onChange(line)` gets the command line after each change. */
export class ArgumentFields {
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
    const input = control(option, id);
    input.addEventListener("input", () => this.onChange(commandLine(this.options, this.values())));
    this.inputs.set(option.flag, input);
    const words = option.help ? el("small", { id: `${id}-help` }, option.help) : null;
    if (words) input.setAttribute("aria-describedby", `${id}-help`);
    const label = el("label", { for: id }, el("code", {}, option.flag));
    return option.kind === "switch"
      ? el("div", { class: "ddp-switch" }, input, label, words)
      : el("div", {}, label, input, words);
  }

  values() {
    const values = {};
    for (const [flag, input] of this.inputs) {
      values[flag] = input.type === "checkbox" ? input.checked : input.value;
    }
    return values;
  }
}

function control(option, id) {
  if (option.kind === "switch") return el("input", { type: "checkbox", id });
  if (option.kind === "choice") {
    const choices = option.choices.map((choice) =>
      el("option", { value: choice, selected: choice === String(option.default ?? "") }, choice),
    );
    return el("select", { id }, choices);
  }
  const isNumber = option.kind !== "text";
  return el("input", {
    id,
    type: "text",
    inputmode: isNumber ? "decimal" : null,
    value: option.default ?? "",
    required: option.is_required,
  });
}
