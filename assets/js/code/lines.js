// Lines of Python: which of them changed, and the parts of a line that get a colour.

const KEYWORDS =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|None|not|or|pass|raise|return|True|False|try|while|with|yield";
const PARTS = new RegExp(
  `(#.*$)|([rbf]{0,2}"(?:[^"\\\\]|\\\\.)*"|[rbf]{0,2}'(?:[^'\\\\]|\\\\.)*')|\\b(${KEYWORDS})\\b`,
  "g",
);
const QUOTES = '"""';

/**
 * Returns the places of the lines of `after` that are not in `before`. Both are lists of [sign, text]; lines
 * with the sign "-" are not part of the script.
 */
export function changedLines(before, after) {
  const old = before.filter(([sign]) => sign !== "-").map(([, text]) => text);
  const now = after.map(([sign, text], place) => ({ sign, text, place })).filter(({ sign }) => sign !== "-");
  // Longest common subsequence: lengths[i][j] of old from i and now from j.
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      lengths[i][j] =
        old[i] === now[j].text ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const changed = new Set();
  for (let i = 0, j = 0; j < now.length;) {
    if (i < old.length && old[i] === now[j].text) {
      i += 1;
      j += 1;
    } else if (i < old.length && lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else {
      if (now[j].text.trim()) changed.add(now[j].place);
      j += 1;
    }
  }
  return changed;
}

/**
 * Returns a line as [kind, text] pairs: "comment", "string", "keyword" or "". `inText.isOpen` carries a text
 * of several lines from one line to the next.
 */
export function tokensOf(line, inText) {
  const quotes = line.split(QUOTES).length - 1;
  if (inText.isOpen || quotes > 0) {
    if (quotes % 2 === 1) inText.isOpen = !inText.isOpen;
    return [["string", line]];
  }
  const found = [];
  let end = 0;
  for (const match of line.matchAll(PARTS)) {
    if (match.index > end) found.push(["", line.slice(end, match.index)]);
    const [, comment, text] = match;
    found.push([(comment && "comment") || (text && "string") || "keyword", match[0]]);
    end = match.index + match[0].length;
  }
  if (end < line.length) found.push(["", line.slice(end)]);
  return found;
}
