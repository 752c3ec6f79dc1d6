// What the page uses of CodeMirror; see README.md.
export { basicSetup, EditorView } from "codemirror";
export { EditorState, StateEffect, StateField } from "@codemirror/state";
export { Decoration, keymap, placeholder } from "@codemirror/view";
export { python } from "@codemirror/lang-python";
export { indentWithTab } from "@codemirror/commands";
export { indentUnit, syntaxHighlighting } from "@codemirror/language";
export { classHighlighter } from "@lezer/highlight";
