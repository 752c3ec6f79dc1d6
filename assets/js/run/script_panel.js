// The code of a script's run: its findings, its error, and the requests for GPUs that have no effect.

import { Editor, markList, openInEditor } from "../script/editor.js";
import { orShowError } from "../shared/dialog.js";
import { el, makeButton, section, setText, show, showText } from "../shared/dom.js";
import { bytes, count } from "../shared/format.js";
import { paragraph, textButton } from "../shared/widgets.js";
import { callEndpoint, lessonPage } from "../shared/net.js";

export class ScriptPanel {
  constructor(runId, summary) {
    this.entry = summary.config.script;
    this.code = null;
    this.findings = [];
    this.error = null;
    this.drawn = "";
    this.editor = new Editor({ label: `The code of ${this.entry}`, isReadOnly: true });
    this.list = el("div", { "aria-live": "polite" });
    this.replaced = el("details", { hidden: true });
    this.description = el("p", { class: "ddp-hint", hidden: true });
    this.edit = textButton("Edit and run again", () => this.openAgain(), "small", { disabled: true });
    const below = [this.editor, this.replaced, this.description];
    this.element = section("Code", "script", this.list, el("p", {}, this.edit), below);
    orShowError(callEndpoint("script_code", runId)).then((code) => code && this.take(code));
  }

  take(code) {
    this.code = code;
    this.edit.disabled = false;
    this.showFile(code.entry);
  }

  showFile(name) {
    const content = this.code.files[name];
    this.shown = name;
    this.editor.text = typeof content === "string" ? content : "(not a text)";
    this.mark();
    const line = errorLine(this.error, name);
    if (line) this.editor.reveal(line);
  }

  update(payload) {
    let fresh = payload.type === "snapshot" ? [] : this.findings;
    for (const mark of payload.marks ?? []) {
      if (mark.kind === "state" && mark.state === "starting") fresh.length = 0;
      if (mark.kind === "finding") fresh = [...fresh.filter(({ code }) => code !== mark.code), mark];
    }
    this.findings = fresh;
    this.error = payload.head.state === "failed" ? payload.head.traceback : null;
    if (payload.script) {
      this.showReplaced(payload.script.replaced ?? []);
      showText(this.description, parametersText(payload.script));
    }
    const now = JSON.stringify([this.findings, this.error]);
    if (now === this.drawn) return;
    this.drawn = now;
    this.list.replaceChildren(this.reviewed());
    if (this.code) this.mark();
    const line = errorLine(this.error, this.entry);
    if (line && this.shown === this.entry) this.editor.reveal(line);
  }

  reviewed() {
    if (this.findings.length === 0) return paragraph("hint", "The review has found nothing so far.");
    const items = this.findings.map(({ level, message, hint, line, file, lesson }) =>
      el(
        "li",
        { "data-level": level },
        el("strong", {}, level === "mistake" ? "Mistake: " : "Remark: "),
        `${message} ${hint ?? ""} `,
        line ? makeButton({ class: "ddp-link", onclick: () => this.goTo(file, line) }, `${file}, line ${line}`) : null, // prettier-ignore
        lesson ? el("a", { href: lessonPage(lesson) }, " Lesson") : null,
      ),
    );
    return el("ul", { class: "ddp-marks" }, items);
  }

  goTo(file, line) {
    if (this.code?.files[file] !== undefined && file !== this.shown) this.showFile(file);
    this.editor.show(line);
  }

  mark() {
    const marks = this.findings
      .filter(({ file, line }) => line && file === this.shown)
      .map(({ line, message }) => ({ line, message, level: "finding" }));
    const line = errorLine(this.error, this.shown);
    if (line) marks.push({ line, message: "The error was raised here.", level: "error" });
    this.editor.mark(marks);
  }

  showReplaced(replaced) {
    show(this.replaced, replaced.length > 0);
    const marks = replaced.map((text) => {
      const [message, line] = text.split(", line ");
      return { message, line: Number(line ?? 1), level: "gpu" };
    });
    const text = el("summary", {});
    const requests =
      replaced.length === 1 ? "1 request for a GPU has" : `${replaced.length} requests for a GPU have`;
    setText(text, `${requests} no effect on CPU ranks`);
    this.replaced.replaceChildren(text, markList(this.editor, marks));
  }

  openAgain() {
    const { files, entry, ...settings } = this.code;
    openInEditor(files, entry, settings);
  }
}

/** Returns the learning rates of several parameter groups, and DDP's gradient buckets, as text. */
export function parametersText({ groups, buckets }) {
  const rates = (groups ?? []).map((each) => `${each.lr ?? "?"} (${count(each.num_parameters)} parameters)`);
  const sizes = (buckets ?? []).map(bytes);
  const sentences = [];
  if (rates.length > 1) sentences.push(`Learning rate of each parameter group: ${rates.join(", ")}.`);
  if (sizes.length > 0) {
    const number = sizes.length === 1 ? "1 bucket" : `${count(sizes.length)} buckets`;
    sentences.push(`DDP averages the gradients in ${number}: ${sizes.join(", ")}.`);
  }
  return sentences.join(" ");
}

/** Returns the last line of a traceback in a file of the script, or null. */
export function errorLine(traceback, file) {
  const escaped = file.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const matches = [...(traceback ?? "").matchAll(new RegExp(`/code/${escaped}", line (\\d+)`, "g"))];
  return matches.length > 0 ? Number(matches.at(-1)[1]) : null;
}
