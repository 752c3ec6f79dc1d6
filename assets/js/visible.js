// Characters that are not seen but act: a terminal's escapes, marks that turn a line around, no width at all.

// Not the joiners: emoji and Persian need them. Line ends and tabs are what they seem.
const ACTING =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Returns a text in which each such character stands as its number. */
export function visible(text) {
  // A log from elsewhere may end its lines with both.
  return text.replaceAll("\r\n", "\n").replace(ACTING, (character) => `⟨${number(character)}⟩`);
}

function number(character) {
  if (character === "\u001b") return "ESC";
  return `U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}
