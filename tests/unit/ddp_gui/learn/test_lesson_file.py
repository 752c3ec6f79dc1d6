"""A lesson file is parsed into a lesson, or its error is reported with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui.learn import lesson_file
from ddp_gui.learn.lesson_file import LessonError
from tests.unit.ddp_gui.learn.lessons import LESSON, changed, line_of

pytestmark = pytest.mark.unit
MEASURED = 'because = "Both see the same."'


def test_a_lesson_sends_commands_to_a_run() -> None:
    slow = '[[runs.commands]]\nname = "slow_rank"\nat_step = 5\nrank = 1\ndelay_ms = 20\n'
    slow = f"max_steps = 40 }}\n\n{slow}\n[prediction]"
    text = changed("max_steps = 40 }\n\n[prediction]", slow)
    (command,) = lesson_file.parse("slow", text).runs[1].commands
    assert (command.at_step, command.endpoint, command.values) == (5, "slow_rank", (1, 20))
    with pytest.raises(LessonError, match="delay_ms: delay_ms is 2000; allowed:") as refused:
        lesson_file.parse("slow", text.replace("delay_ms = 20", "delay_ms = 2000"))
    assert refused.value.line == line_of("delay_ms", text)


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ('title = "One and two"\n', "", "+++", "title is missing"),
        (
            MEASURED,
            "measured = []\n" + MEASURED,
            "measured",
            "prediction.measured is []; allowed: a list of 2 to 6, each a text",
        ),
        (
            MEASURED,
            'measured = ["", ""]\n' + MEASURED,
            "measured",
            "measured: choice 1 is the right one, and has no",
        ),
        ("minutes = 5", "minutes = 0", "minutes", "minutes is 0; allowed: a whole number from 1"),
        ("minutes = 5", "minutes = ", "minutes", "the header is not TOML"),
        ("minutes = 5", "minuets = 5", "minuets", "'minuets' is not a field; allowed: title, minutes"),
        ('name = "two ranks"', 'name = ""', 'name = ""', "runs[1].name is ''; allowed: a text"),
        (
            "nproc_per_node = 2",
            "nproc_per_nod = 2",
            'config = { model = "mlp", dataset = "digits", nproc_per_nod ',
            "config: nproc_per_nod is 2; allowed: no field of this name",
        ),
        (
            'right = 1\nbecause = "Both',
            'right = 2\nbecause = "Both',
            "right = 2",
            "prediction.right is 2; allowed: a whole number from 0 to 1",
        ),
        (
            '"The [all-reduce](term:all-reduce) averages."',
            '"The [sum](term:nonsense) averages."',
            'because = "The [sum]',
            "because: the glossary has no term 'nonsense'",
        ),
        (
            'numbers = ["loss", "took"]',
            'numbers = ["luck"]',
            "numbers",
            "numbers[0] is 'luck'; allowed: one of loss",
        ),
        ("## See\n", "## Look\n", "## Look", "a heading is '## Look'; allowed, once each: ## Before"),
        ("## Explain\n\nBecause of `loss.backward()`.\n", "", "## See", "the part ## Explain is missing"),
        (
            "Two ranks share",
            "<script>alert(1)</script>\n\nTwo ranks share",
            "<script>",
            "the text has an element of the kind 'html block'",
        ),
        (
            "Two ranks share",
            "![](http://x.org/a.png) share",
            "![](http",
            "the text has an element of the kind 'image'",
        ),
        (
            "- Look here.",
            "- Look.\n- [there](javascript:alert(1))",
            "- [there]",
            "a link goes to 'javascript:alert(1)'",
        ),
    ],
)
def test_whatever_is_wrong_is_said_with_its_line(old: str, new: str, at: str, words: str) -> None:
    text = changed(old, new)
    with pytest.raises(LessonError) as refused:
        lesson_file.parse("broken", text)
    assert words in str(refused.value)
    assert refused.value.line == line_of(at, text), str(refused.value)


def test_the_line_of_a_file_that_is_no_text_is_said_and_a_huge_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "01-bytes.md"
    path.write_bytes(b"+++\ntitle = '\xff'\n+++\n")
    with pytest.raises(LessonError, match=r"line 2: the file is not UTF-8 text"):
        lesson_file.read(path)
    path.write_bytes(b"+++\n" + b"#" * lesson_file.MAX_BYTES)
    with pytest.raises(LessonError, match=r"line 1: the file has more than 200,000 bytes"):
        lesson_file.read(path)


def test_a_name_that_is_no_part_of_an_address_is_refused() -> None:
    with pytest.raises(LessonError, match="allowed: lower-case letters"):
        lesson_file.parse("What? Why!", LESSON)
