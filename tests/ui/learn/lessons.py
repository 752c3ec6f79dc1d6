"""Short lessons for tests: with a choice, with a curve to draw, and with an error."""

from __future__ import annotations

from pathlib import Path

CHOICE = """\
[prediction]
question = "Which loss is lower?"
choices = ["the first", "**neither**"]
right = 1
because = "Both see the same."
measured = ["loss(0) < 0", "loss(0) > 0"]
"""
CURVE = """\
[prediction]
question = "Draw the loss of the first run."
curve = "loss"
axis = "step"
run = 0
until = 80
low = 0
high = 4
"""
LESSON = """\
+++
title = "TITLE"
minutes = 1
summary = "A test."

[[runs]]
name = "first"
config = { model = "mlp", dataset = "digits", nproc_per_node = RANKS, device = "cpu", max_steps = 80 }

[[runs]]
name = "second"
config = { model = "mlp", dataset = "digits", nproc_per_node = 1, device = "cpu", max_steps = 80 }

PREDICTION
[[pictures]]
caption = "The losses."
curve = "loss"
marks = [{ x = 40, words = "half way" }]

[[pictures]]
see = "Which one has more steps?"
caption = "Measured."
finding = "Both have 80 steps."
when = "num_steps(0) == 80 and num_steps(1) == 80"
numbers = ["num_steps", "global_batch", "samples", "loss", "validation", "took", "memory"]

[[pictures]]
caption = "What each rank holds."
bars = "memory"

[[pictures]]
caption = "What it cost."
waterfall = 1

[[pictures]]
caption = "Are the replicas the same?"
instrument = "fingerprints"
run = 0

[[questions]]
question = "Why?"
choices = ["so", "not so"]
right = 0
because = "That is why."

[[questions]]
question = "And with another seed?"
choices = ["the same", "another"]
right = 1
because = "It draws others."
measured = ["loss('seed 1') == loss(1)", "loss('seed 1') != loss(1)"]

[questions.attempt]
run = 1
label = "Seed"
choices = { "seed 1" = { seed = 1 } }
+++
## Before
Each [rank](term:rank) has a copy. <EVIL>

## See
- Look *here*.

## Explain
Because of `loss.backward()`.
"""


HANGS = """
[[runs]]
name = "second"
expect = "failed"
config = { model = "mlp", dataset = "digits", nproc_per_node = 2, device = "cpu", mistake = "uneven_batches", hang_timeout_s = 2.0, num_epochs = 1 }
"""  # noqa: E501
COMMANDED = """
[[runs.commands]]
name = "slow_rank"
at_step = 2
rank = 0
delay_ms = 4
"""
SECOND = LESSON[LESSON.index('[[runs]]\nname = "second"') : LESSON.index("\nPREDICTION")]


def write(folder: Path) -> Path:
    folder.mkdir()
    whole = LESSON.replace("<EVIL>", "2 < 3 & `<b>no tag</b>`")
    chosen = whole.replace("PREDICTION", CHOICE).replace("RANKS", "2")
    drawn = whole.replace("PREDICTION", CURVE)
    (folder / "90-chosen.md").write_text(chosen.replace("TITLE", "To choose"))
    (folder / "91-drawn.md").write_text(drawn.replace("TITLE", "To draw").replace("RANKS", "1"))
    (folder / "92-large.md").write_text(drawn.replace("TITLE", "Too large").replace("RANKS", "900"))
    hanging = chosen.replace(SECOND, HANGS.lstrip()).replace("TITLE", "To hang")
    (folder / "94-hanging.md").write_text(
        hanging.replace("seed 1", "not hanging").replace("seed = 1", 'mistake = "none"')
    )
    commanded = chosen.replace("\n" + SECOND, COMMANDED).replace(
        "waterfall = 1", 'instrument = "step-theatre"'
    )
    for before, after in (
        ("max_steps = 80", "max_steps = 500"),
        ("num_steps(0) == 80 and num_steps(1) == 80", "num_steps(0) == 500"),
        ("run = 1", "run = 0"),
        ("loss(1)", "loss(0)"),
    ):
        commanded = commanded.replace(before, after)
    (folder / "95-commanded.md").write_text(commanded.replace("TITLE", "To slow down"))
    (folder / "93-broken.md").write_text(chosen.replace("minutes = 1", "minutes = 0"))
    return folder
