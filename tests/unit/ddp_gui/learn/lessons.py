"""The text of a lesson, complete or with one change."""

from __future__ import annotations

LESSON = """\
+++
title = "One and two"
minutes = 5
summary = "What two ranks do."

[[runs]]
name = "one rank"
config = { model = "mlp", dataset = "digits", nproc_per_node = 1, max_steps = 40 }

[[runs]]
name = "two ranks"
config = { model = "mlp", dataset = "digits", nproc_per_node = 2, max_steps = 40 }

[prediction]
question = "Which loss is lower?"
choices = ["the first", "**neither**"]
right = 1
because = "Both see the same."

[[pictures]]
caption = "The losses."
curve = "loss"
axis = "samples"

[[pictures.marks]]
x = 100
words = "here they part"

[[pictures]]
caption = "What was measured."
numbers = ["loss", "took"]

[[questions]]
question = "Why?"
choices = ["so", "not so"]
right = 0
because = "The [all-reduce](term:all-reduce) averages."

[[questions]]
question = "And with another seed?"
choices = ["the same", "another"]
right = 1
because = "It draws others."

[questions.attempt]
run = 1
label = "Seed"
choices = { "seed 1" = { seed = 1 }, "seed 2" = { seed = 2 } }
+++
## Before

Two ranks share a [batch](term:global_batch).

## See

- Look here.

## Explain

Because of `loss.backward()`.
"""


def changed(old: str, new: str) -> str:
    assert old in LESSON
    return LESSON.replace(old, new, 1)


def line_of(part: str, text: str = LESSON) -> int:
    """Return the line number at which a part begins."""
    return text[: text.index(part)].count("\n") + 1
