"""Configurations worth a first click: each fills the form in, and says what there is to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A title, what to look at, and its fields; the form opens with the first preset's."""

    name: str
    title: str
    words: str
    values: Mapping[str, Any]


PRESETS = (
    Preset(
        name="fashion",
        title="Fashion-MNIST, a first run",
        words="A small network learns to tell shirts from shoes. See which images it gets wrong.",
        # About 110 CPU seconds: shifted, and with weight decay, the 8,000 images are not memorised by then.
        values={
            "dataset": "fashion_mnist",
            "model": "cnn",
            "num_epochs": 56,
            "random_crop": 2,
            "weight_decay": 0.1,
        },
    ),
    Preset(
        name="austen",
        title="Write like Jane Austen",
        words="A GPT learns English letter by letter. Every ten seconds it writes a sample.",
        values={"dataset": "austen", "model": "gpt", "num_epochs": 3},
    ),
    Preset(
        name="moons",
        title="Two moons, watch the boundary",
        words="The plane is coloured by the predicted class. Watch the decision boundary bend.",
        values={
            "dataset": "moons",
            "model": "tabular_mlp",
            "batch_size": 16,
            "learning_rate": 0.0003,
            "num_epochs": 600,
            "eval_every_steps": 500,
            "checkpoint_every_steps": 5000,
        },
    ),
    Preset(
        name="scaling",
        title="What do more GPUs buy?",
        words="300 steps of a network that keeps the cores busy. Then run it again with fewer or more ranks, "
        "select both under Runs, and compare.",
        values={
            "dataset": "fashion_mnist",
            "model": "resnet",
            "model_size": "slim",
            "max_steps": 300,
            "eval_every_steps": 150,
            "checkpoint_every_steps": 300,
        },
    ),
)


# The other fields of a preset are for this data and this model.
WHAT_IS_TRAINED = frozenset({"dataset", "model", "model_size"})
FITTED_FIELDS = tuple(
    sorted({name for preset in PRESETS for name in preset.values if name not in WHAT_IS_TRAINED})
)


def find(name: str) -> Preset:
    """Return the preset of this name."""
    return next(preset for preset in PRESETS if preset.name == name)
