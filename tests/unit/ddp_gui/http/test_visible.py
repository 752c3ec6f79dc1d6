"""Invisible characters with an effect are shown as their number; those needed by words and emoji are kept."""

from __future__ import annotations

import unicodedata

import pytest

from ddp_gui.http.shell import visible

# Visible format characters: Arabic and Kaithi signs under a number or around the end of a verse.
SEEN_ALTHOUGH_FORMAT = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u0890\u0891\u08e2\U000110bd\U000110cd"
BLANK = "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159\U00013441"
IGNORABLE = (
    "\xad\u034f\u061c\u180b\u180c\u180d\u180e\u180f\u2065\ufe01\ufe0f\ufff0\U0001bca0\U000e0100\U000e0fff"
)
# None of these is needed inside a Latin word.
ACTING = [
    chr(number)
    for number in range(0x110000)
    if unicodedata.category(chr(number)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    and chr(number) not in SEEN_ALTHOUGH_FORMAT + "\t\n"
]
NEEDED = (
    "👨‍👩‍👧",
    "👩🏽‍🚀",
    "❤️‍🔥",
    "🏳️‍🌈",
    "☺︎",
    "©️",
    "1️⃣#️⃣",
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "می‌خواهم",
    "क्‍ष",
    "ශ්‍රී",
    "葛\U000e0100城",
    "שלום é ñ 日本 Ω ½ \t\n",
)
# Needed in other contexts, but invisible here.
MISUSED = (
    "a\u200db",
    "a\u200cb",
    "1\ufe0f",
    "a\ufe0f",
    "葛\ufe0f",
    "👨\u200d\u200d",
    "🏴\U000e0067\U000e0062",
    "a\U000e0100",
)


@pytest.mark.parametrize("before", ["a", " "])
def test_what_acts_unseen_is_shown_as_its_number(before: str) -> None:
    for character in (*ACTING, *BLANK, *IGNORABLE):
        number = "ESC" if character == "\x1b" else f"U+{ord(character):04X}"
        assert visible(f"{before}{character}b") == f"{before}⟨{number}⟩b"


@pytest.mark.parametrize("text", NEEDED)
def test_what_words_and_emoji_need_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", MISUSED)
def test_joiners_and_selectors_where_none_is_needed_are_shown(text: str) -> None:
    assert "⟨U+" in visible(text)
