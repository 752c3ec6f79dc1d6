// An editor for Python: CodeMirror, loaded when it is needed, with marked lines. Other pages can put a text into it.

import { el, makeButton } from "../shared/dom.js";
import { address } from "../shared/net.js";
import { paragraph } from "../shared/widgets.js";

/** @typedef {{ line: number, message: string, level: string }} Mark */

let loading = null;

function codeMirror() {
  loading ??= import(address("live/codemirror.min.js"));
  return loading;
}

/** A text with line numbers, highlighting and marked lines; a plain text field until CodeMirror is loaded. */
export class Editor {
  constructor({ label, hint = "", isReadOnly = false, onChange = () => {} }) {
    this.hint = hint;
    this.isReadOnly = isReadOnly;
    this.onChange = onChange;
    this.marks = [];
    this.view = null;
    this.revealed = 0;
    this.plain = el("textarea", {
      class: "ddp-editor-plain",
      spellcheck: "false",
      "aria-label": label,
      placeholder: hint,
      readonly: isReadOnly,
      oninput: () => this.onChange(),
    });
    // Inside a shadow root CodeMirror adds its styles as objects, which the page's security policy allows.
    this.container = el("div", { class: "ddp-editor", hidden: true });
    const text = "Tab indents. Escape, then Tab, leaves the editor.";
    this.element = el("div", {}, this.plain, this.container, isReadOnly ? null : paragraph("caption", text));
    codeMirror().then(
      (library) => this.begin(library, label),
      () => {}, // the plain text field stays
    );
  }

  begin(library, label) {
    const { EditorView, EditorState, StateEffect, StateField, Decoration } = library;
    this.setMarks = StateEffect.define();
    const marked = StateField.define({
      create: () => Decoration.none,
      update: (lines, { changes, effects, state }) =>
        effects
          .filter((effect) => effect.is(this.setMarks))
          .reduce((_, { value }) => decorations(Decoration, state.doc, value), lines.map(changes)),
      provide: (it) => EditorView.decorations.from(it),
    });
    const root = this.container.attachShadow({ mode: "open" });
    root.append(el("link", { rel: "stylesheet", href: address("live/assets/css/script/editor.css") }));
    const hadFocus = document.activeElement === this.plain;
    const extensions = [
      library.basicSetup,
      library.keymap.of([library.indentWithTab]),
      library.indentUnit.of("    "),
      library.python(),
      library.placeholder(this.hint),
      library.syntaxHighlighting(library.classHighlighter),
      marked,
      EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
      EditorState.readOnly.of(this.isReadOnly),
      EditorView.updateListener.of(({ docChanged }) => docChanged && this.onChange()),
    ];
    this.view = new EditorView({ root, parent: root, doc: this.plain.value, extensions });
    this.container.hidden = false;
    this.plain.hidden = true;
    if (hadFocus) this.view.focus();
    this.mark(this.marks);
    if (this.revealed) requestAnimationFrame(() => this.reveal(this.revealed));
  }

  get text() {
    return this.view ? this.view.state.doc.toString() : this.plain.value;
  }

  set text(text) {
    this.marks = [];
    if (this.view) {
      this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text } });
    } else this.plain.value = text;
  }

  /** Marks lines; a mark has a line, a message and a level, which is its colour. @param {Mark[]} marks */
  mark(marks) {
    this.marks = marks;
    this.view?.dispatch({ effects: this.setMarks.of(marks) });
  }

  /** Scrolls to a line and puts the cursor there. */
  show(line) {
    if (!this.view) return;
    this.view.dispatch({ selection: { anchor: this.beginOf(line) }, scrollIntoView: true });
    this.view.focus();
  }

  /** Scrolls the text to a line; the page and the focus stay where they are. */
  reveal(line) {
    this.revealed = line;
    if (!this.view) return; // done when CodeMirror is there
    const { scrollDOM } = this.view;
    const { top } = this.view.lineBlockAt(this.beginOf(line));
    scrollDOM.scrollTop = top - scrollDOM.clientHeight / 2;
  }

  beginOf(line) {
    const { doc } = this.view.state;
    return doc.line(Math.min(Math.max(1, line), doc.lines)).from;
  }
}

function decorations(Decoration, doc, marks) {
  const inside = marks
    .filter(({ line }) => line >= 1 && line <= doc.lines)
    .toSorted((a, b) => a.line - b.line);
  const lines = inside.map(({ line, message, level }) =>
    Decoration.line({ class: `marked marked-${level}`, attributes: { title: message } }).range(doc.line(line).from),
  ); // prettier-ignore
  return Decoration.set(lines);
}

/** A list of marks with links to their lines, for those who do not see colours. */
export function markList(editor, marks) {
  const link = (line) => makeButton({ class: "ddp-link", onclick: () => editor.show(line) }, `Line ${line}`);
  const items = marks.map(({ line, message, level }) =>
    el("li", { "data-level": level }, link(line), ` ${message}`),
  );
  return el("ul", { class: "ddp-marks" }, items);
}

const KEY = "ddp-script";

/**
 * Opens "Run my script" with these files in its editor: an object of names and texts, and the entry file.
 * `settings` may have the fields of /start_script.
 */
export function openInEditor(files, entry, settings = {}) {
  sessionStorage.setItem(KEY, JSON.stringify({ files, entry, ...settings }));
  window.location.assign(address("script"));
}

/** Keeps in this tab what is in the editor of the page at `search`, the query of its address. */
export function keepOpened(search, opened) {
  try {
    sessionStorage.removeItem(KEY + search); // what does not fit leaves nothing older
    sessionStorage.setItem(KEY + search, JSON.stringify(opened));
  } catch {
    // Storage is optional, and a large folder does not fit.
  }
}

/** Returns what `openInEditor` or `keepOpened` has left; null if there is nothing. */
export function keptOpened(search) {
  try {
    return JSON.parse(sessionStorage.getItem(KEY + search) ?? "null");
  } catch {
    return null; // the browser blocks storage
  }
}
