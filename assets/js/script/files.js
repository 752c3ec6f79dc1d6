// The files and the arguments of a submitted script.

import { el, freeId } from "../shared/dom.js";
import { PlainError } from "../shared/net.js";

// Reads dropped or chosen files and folders: texts as text, others as base64.

const IGNORED = /(^|\/)(\.|__pycache__|node_modules|wandb|runs\/)/;

/** Returns the text of a file; empty for other files. */
export function textOf(content) {
  return typeof content === "string" ? content : "";
}

/** Returns `{ files }`, or `{ zip }` in base64 if one zip was given; throws a PlainError if it is too much. */
export async function filesOf({ items, files }, mostBytes) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const walked = await Promise.all(entries.map((entry) => walk(entry, "")));
  const given = [...files].map((file) => [file.webkitRelativePath || file.name, file]);
  const wanted = (entries.length > 0 ? walked.flat() : given).filter(([name]) => !IGNORED.test(name));
  const size = wanted.reduce((sum, [, file]) => sum + file.size, 0);
  if (size > mostBytes) {
    const [has, most] = [size, mostBytes].map((bytes) => `${Math.round(bytes / 1000)} kB`);
    throw new PlainError(`These files have ${has}, but allowed is: at most ${most}. Give the path instead.`);
  }
  if (wanted.length === 1 && wanted[0][0].toLowerCase().endsWith(".zip")) {
    return { zip: await base64(wanted[0][1]), files: {} };
  }
  const contents = await Promise.all(wanted.map(async ([name, file]) => [name, await contentOf(file)]));
  return { files: withoutCommonFolder(Object.fromEntries(contents)), zip: null };
}

async function walk(entry, before) {
  if (entry.isFile) {
    const file = await new Promise((take, fail) => {
      entry.file(take, fail);
    });
    return [[before + entry.name, file]];
  }
  if (IGNORED.test(`${before}${entry.name}/`)) return [];
  const reader = entry.createReader();
  const children = [];
  for (;;) {
    // A folder is read in parts of at most a hundred entries.
    const part = await new Promise((take, fail) => {
      reader.readEntries(take, fail);
    });
    if (part.length === 0) break;
    children.push(...part);
  }
  return (await Promise.all(children.map((child) => walk(child, `${before}${entry.name}/`)))).flat();
}

async function contentOf(file) {
  const bytes = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return { base64: await base64(file) };
  }
}

async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCodePoint(byte)).join(""));
}

/** Leaves out a folder that contains all files. */
export function withoutCommonFolder(files) {
  const names = Object.keys(files);
  const first = names[0]?.split("/")[0];
  if (names.length === 0 || !names.every((name) => name.startsWith(`${first}/`))) return files;
  return Object.fromEntries(names.map((name) => [name.slice(first.length + 1), files[name]]));
}

// Form fields for a script's options, and the command line that they stand for.

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
