// An editor for Python: CodeMirror, loaded when it is needed, with marked lines.

import { el, freeId, setText } from "../shared/dom.js";
import { address } from "../shared/net.js";

/** @typedef {{ line: number, message: string, level: string }} Mark */

let loading = null;

function codeMirror() {
  loading ??= import(address("live/codemirror.min.js"));
  return loading;
}

/** A text with line numbers, highlighting and marked lines; a plain text field until CodeMirror is loaded. */
export class Editor {
  constructor({ label, isReadOnly = false, onChange = () => {} }) {
    this.isReadOnly = isReadOnly;
    this.onChange = onChange;
    this.marks = [];
    this.view = null;
    this.plain = el("textarea", {
      class: "ddp-editor-plain",
      spellcheck: "false",
      "aria-label": label,
      readonly: isReadOnly,
      oninput: () => this.onChange(),
    });
    // Inside a shadow root CodeMirror adds its styles as objects, which the page's security policy allows.
    this.place = el("div", { class: "ddp-editor", hidden: true });
    this.listId = freeId("ddp-editor-marks");
    this.element = el(
      "div",
      {},
      this.plain,
      this.place,
      isReadOnly
        ? null
        : el("p", { class: "ddp-caption" }, "Tab indents. Escape, then Tab, leaves the editor."),
    );
    codeMirror().then(
      (library) => this.begin(library, label),
      () => {}, // the plain text field stays
    );
  }

  begin(library, label) {
    const { EditorView, EditorState, StateEffect, StateField, Decoration, keymap } = library;
    this.setMarksEffect = StateEffect.define();
    const field = StateField.define({
      create: () => Decoration.none,
      update: (lines, transaction) => {
        let now = lines.map(transaction.changes);
        for (const effect of transaction.effects) {
          if (effect.is(this.setMarksEffect)) now = decorations(library, transaction.state.doc, effect.value);
        }
        return now;
      },
      provide: (it) => EditorView.decorations.from(it),
    });
    const root = this.place.attachShadow({ mode: "open" });
    const text = this.plain.value;
    const hadFocus = document.activeElement === this.plain;
    this.view = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: text,
        extensions: [
          library.basicSetup,
          keymap.of([library.indentWithTab]),
          library.indentUnit.of("    "),
          library.python(),
          library.syntaxHighlighting(colours(library)),
          field,
          theme(EditorView),
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorState.readOnly.of(this.isReadOnly),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) this.onChange();
          }),
        ],
      }),
    });
    this.place.hidden = false;
    this.plain.hidden = true;
    if (hadFocus) this.view.focus();
    this.mark(this.marks);
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
    this.view?.dispatch({ effects: this.setMarksEffect.of(marks) });
  }

  /** Scrolls to a line. */
  show(line) {
    if (!this.view) return;
    const { doc } = this.view.state;
    const { from } = doc.line(Math.min(Math.max(1, line), doc.lines));
    this.view.dispatch({ selection: { anchor: from }, scrollIntoView: true });
    this.view.focus();
  }
}

function decorations({ Decoration }, doc, marks) {
  const inside = marks.filter(({ line }) => line >= 1 && line <= doc.lines);
  inside.sort((a, b) => a.line - b.line);
  return Decoration.set(
    inside.map(({ line, message, level }) =>
      Decoration.line({ class: `marked marked-${level}`, attributes: { title: message } }).range(
        doc.line(line).from,
      ),
    ),
  );
}

function colours({ HighlightStyle, tags }) {
  return HighlightStyle.define([
    { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--ddp-blue)" },
    { tag: [tags.string, tags.special(tags.string)], color: "var(--ddp-green)" },
    { tag: [tags.number, tags.bool, tags.null], color: "var(--ddp-orange)" },
    { tag: tags.comment, color: "var(--ddp-soft)", fontStyle: "italic" },
    { tag: [tags.definition(tags.variableName), tags.function(tags.variableName)], fontWeight: "600" },
  ]);
}

function theme(EditorView) {
  return EditorView.theme({
    "&": { color: "var(--ddp-text)", backgroundColor: "var(--ddp-field)", fontSize: "0.85rem" },
    "&.cm-focused": { outline: "2px solid var(--ddp-focus)" },
    ".cm-scroller": { fontFamily: "var(--ddp-mono)", maxHeight: "34rem", overflow: "auto" },
    ".cm-content": { caretColor: "var(--ddp-text)" },
    ".cm-cursor": { borderLeftColor: "var(--ddp-text)" },
    ".cm-gutters": { color: "var(--ddp-soft)", backgroundColor: "var(--ddp-sunk)", border: "none" },
    ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
    "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
      backgroundColor: "color-mix(in srgb, var(--ddp-blue) 25%, transparent) !important",
    },
    ".marked": { boxShadow: "inset 4px 0 var(--ddp-orange)" },
    ".marked-error": {
      boxShadow: "inset 4px 0 var(--ddp-red)",
      backgroundColor: "color-mix(in srgb, var(--ddp-red) 16%, transparent)",
    },
    ".marked-added": {
      boxShadow: "inset 4px 0 var(--ddp-green)",
      backgroundColor: "color-mix(in srgb, var(--ddp-green) 12%, transparent)",
    },
  });
}

/** A list of marks with links to their lines, for those who do not see colours. */
export function markList(editor, marks, empty = "") {
  const list = el("ul", { class: "ddp-marks" });
  for (const mark of marks) {
    list.append(
      el(
        "li",
        { "data-level": mark.level },
        el(
          "button",
          { type: "button", class: "ddp-link", onclick: () => editor.show(mark.line) },
          `Line ${mark.line}`,
        ),
        ` ${mark.message}`,
      ),
    );
  }
  if (marks.length === 0) setText(list, empty);
  return list;
}
