export { EditorView, basicSetup } from "codemirror";
export { EditorState, StateEffect, StateField, Compartment, RangeSetBuilder } from "@codemirror/state";
export { Decoration, GutterMarker, gutter, lineNumbers, keymap } from "@codemirror/view";
export { python } from "@codemirror/lang-python";
export { indentWithTab } from "@codemirror/commands";
export { HighlightStyle, syntaxHighlighting, indentUnit } from "@codemirror/language";
export { tags } from "@lezer/highlight";
