// Makes invisible characters visible: terminal escapes, marks that change the text direction, zero-width
// characters, and blanks that Unicode classifies as letters. `ddp_gui/http/shell.py` lists them with reasons;
// a test keeps both lists equal.

const ACTING =
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u070f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
  "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ud800-\\udfff\\ufe00-\\ufe0f\\ufeff\\uffa0" +
  "\\ufff0-\\ufffb\\ufffe\\uffff\\u{13430}-\\u{1345f}\\u{16fe4}\\u{1bca0}-\\u{1bca3}\\u{1d159}\\u{1d173}-\\u{1d17a}" +
  "\\u{e0000}-\\u{e0fff}]";
// Invisible characters that are needed in emoji, Persian and Indian scripts, Chinese names and regional
// flags.
const EMOJI =
  "[\\u00a9\\u00ae\\u203c\\u2049\\u2122\\u2139\\u2190-\\u27bf\\u2900-\\u297f\\u2b00-\\u2bff\\u3030\\u303d\\u3297\\u3299\\u{1f000}-\\u{1faff}]";
const JOINED =
  "[\\u0600-\\u060b\\u0620-\\u0dff\\u1000-\\u109f\\u1780-\\u17b3\\u17b6-\\u17ff\\ufb50-\\ufdff\\ufe70-\\ufefc]";
const IDEOGRAPH = "[\\u3400-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}]";
const NEEDED = [
  "\\u{1f3f4}[\\u{e0030}-\\u{e0039}\\u{e0061}-\\u{e007a}]{3,6}\\u{e007f}",
  "[0-9#*]\\ufe0f\\u20e3",
  `${EMOJI}(?:[\\ufe0e\\ufe0f]\\u200d?|\\u200d)`,
  `${JOINED}[\\u200c\\u200d]`,
  `${IDEOGRAPH}[\\u{e0100}-\\u{e01ef}]`,
].join("|");
const FOUND = new RegExp(`(?:${NEEDED})|(${ACTING})`, "gu");

/**
 * Replaces each such character by its code, as in ⟨U+200B⟩.
 * @param {string} text
 */
export function visible(text) {
  // Logs written elsewhere may contain CRLF line ends.
  return text
    .replaceAll("\r\n", "\n")
    .replaceAll(FOUND, (found, acting) => (acting === undefined ? found : `⟨${number(acting)}⟩`));
}

/**
 * @param {string} character
 */
function number(character) {
  if (character === "\u001b") return "ESC";
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}
