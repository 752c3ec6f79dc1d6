"""Characters that are not seen but act are shown as their numbers; `assets/js/visible.js` does the same."""

from __future__ import annotations

import html
import re

# A terminal's escapes, marks that turn a line around, no width at all, halves of a character. Not the
# joiners, which emoji and Persian need.
_ACTING = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    """Return a text in which nothing can act unseen."""
    return _ACTING.sub(lambda found: f"⟨{_number(found[0])}⟩", text)


def as_html(text: object) -> str:
    """Return a text of anybody's as HTML that shows it and does nothing else."""
    return f"<bdi>{html.escape(visible(str(text)))}</bdi>"


def _number(character: str) -> str:
    return "ESC" if character == "\x1b" else f"U+{ord(character):04X}"
