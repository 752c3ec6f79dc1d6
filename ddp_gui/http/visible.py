"""Shows invisible characters as their code points, as `assets/js/shared/visible.js` does."""

from __future__ import annotations

import html
import re

# Terminal escapes, bidirectional marks, zero width, blank letters, lone surrogates: Unicode's
# Default_Ignorable_Code_Point, Cf, Zl, Zp and Cc, and blanks that are called letters. Not the Arabic signs
# below a number, which are visible.
_ACTING = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufffb\ufffe\uffff\U00013430-\U0001345f\U00016fe4\U0001bca0-\U0001bca3"
    "\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Joiners, selectors and tags are visible parts of emoji, Persian and Indic words, Chinese names and regional
# flags. Elsewhere they only make two names look the same.
_EMOJI = (
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27bf\u2900-\u297f"
    "\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_JOINED = "[\u0600-\u060b\u0620-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\ufb50-\ufdff\ufe70-\ufefc]"
_IDEOGRAPH = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_NEEDED = "|".join(
    (
        "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f",
        "[0-9#*]\ufe0f\u20e3",
        f"{_EMOJI}(?:[\ufe0e\ufe0f]\u200d?|\u200d)",
        f"{_JOINED}[\u200c\u200d]",
        f"{_IDEOGRAPH}[\U000e0100-\U000e01ef]",
    )
)
_FOUND = re.compile(f"(?:{_NEEDED})|({_ACTING})")


def visible(text: str) -> str:
    """Return a text without invisible characters that have an effect."""
    return _FOUND.sub(lambda found: f"⟨{_number(found[1])}⟩" if found[1] else found[0], text)


def as_html(text: object) -> str:
    """Return an untrusted text as HTML that only shows it."""
    return f"<bdi>{html.escape(visible(str(text)))}</bdi>"


def _number(character: str) -> str:
    return "ESC" if character == "\x1b" else f"U+{ord(character):04X}"
