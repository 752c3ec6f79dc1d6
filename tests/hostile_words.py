"""Hostile text: markup that acts if it is not escaped, and characters that must not reach a client."""

from __future__ import annotations

import re

TAGS = "<img src=x onerror=alert(1)><script>alert(2)</script><a href='javascript:alert(3)'>x</a>"
ENTITIES = "&lt;b&gt;\"'`${alert(4)}{{7*7}}"
WORDS = "%3Cimg%20src=x%20onerror=alert(1)%3E"
# Right-to-left override, zero-width characters, blanks classified as letters, and a tag character.
TURNED = "\u202egnp.exe\u2066\u200b\u3164\u2800\u115f\xad\ufe00\U000e0041"
LETTERS = "שלום 😀👨‍👩‍👧 é"
NAME = f"{TAGS} {ENTITIES} {LETTERS}"
ACTING = f"{NAME} {TURNED} \x1b[31mred\x1b]0;title\x07 \x00"
# Characters that must not appear in any text node or table.
SEEN_NOWHERE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00"
    "\U000e0041]"
)
