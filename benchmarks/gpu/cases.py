"""The trained models: a GPT with 124 million parameters and a ResNet-50, and small variants of both."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainers import registry
from trainers.data.dataset import DataOptions, Dataset

DATASET = "own"
NEVER = 10**9
LEARNING_RATE = 3e-4
# Hangul syllables, then Chinese characters: enough distinct characters for a vocabulary, one token each.
FIRST_CHARACTERS = range(0xAC00, 0xAC00 + 11_172)
MORE_CHARACTERS_FROM = 0x4E00
NUM_PICTURES = 64  # distinct pictures; each is written many times


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model and its data.

    Attributes:
        units_per_sample: tokens or images in a sample, which `unit` counts.
        first_batch, most_batch: range of the search for the batch that fills the card.
        small_batch: a batch whose steps are far shorter than the interval of reports.
        write: writes the data into a folder and returns the path for `data_path`.
        options: additional fields of the configuration.
    """

    model: str
    model_size: str
    unit: str
    units_per_sample: int
    first_batch: int
    most_batch: int
    small_batch: int
    write: Callable[[Path], Path]
    options: dict[str, Any] = field(default_factory=dict)

    def config(self, data: Path, *, batch_size: int, device: str, is_compiled: bool) -> dict[str, Any]:
        """Return the job's configuration, without evaluations and checkpoints during training."""
        return {
            "model": self.model,
            "model_size": self.model_size,
            "dataset": DATASET,
            "data_path": str(data),
            "data_location": "device",
            "batch_size": batch_size,
            "learning_rate": LEARNING_RATE,
            "precision": "bf16",
            "compile": is_compiled,
            "device": device,
            "nproc_per_node": 1,
            "num_epochs": 100_000,
            "eval_every_steps": NEVER,
            "checkpoint_every_steps": NEVER,
            "keep_best_checkpoint": False,
            "keep_last_checkpoints": 1,
            **self.options,
        }

    def dataset(self, data: Path) -> Dataset:
        """Return the data as the job reads it. The first call prepares it for all runs."""
        registry.discover_all()
        options = DataOptions(path=str(data), sequence_length=self.options.get("sequence_length"))
        return registry.datasets()[DATASET].create(options)


def text_writer(num_characters: int, vocabulary_size: int) -> Callable[[Path], Path]:
    """Return a function that writes random text that contains every character of the vocabulary."""

    def write(folder: Path) -> Path:
        path = folder / "text.txt"
        more = range(MORE_CHARACTERS_FROM, MORE_CHARACTERS_FROM + vocabulary_size)
        vocabulary = np.array([*FIRST_CHARACTERS, *more][:vocabulary_size], dtype="<u4")
        dice = np.random.default_rng(0)
        drawn = vocabulary[dice.integers(vocabulary_size, size=num_characters)]
        drawn[:vocabulary_size] = vocabulary
        path.write_text(drawn.tobytes().decode("utf-32-le"), encoding="utf-8")
        return path

    return write


def image_writer(num_train: int, side: int, num_classes: int) -> Callable[[Path], Path]:
    """Return a function that writes images in class folders; the search's batch sizes divide `num_train`."""

    def write(folder: Path) -> Path:
        pictures = _pictures(side)
        root = folder / "images"
        for split, count in (("train", num_train), ("val", num_classes)):
            for number in range(count):
                path = root / split / f"class_{number % num_classes:03d}" / f"{number:06d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(pictures[number % len(pictures)])
        return root

    return write


def _pictures(side: int) -> list[bytes]:
    from PIL import Image

    dice = np.random.default_rng(0)
    found = []
    for _ in range(NUM_PICTURES):
        blots = Image.fromarray(dice.integers(256, size=(8, 8, 3), dtype=np.uint8)).resize((side, side))
        file = io.BytesIO()
        blots.save(file, "jpeg")
        found.append(file.getvalue())
    return found


# 12 layers of width 768, 1,024 tokens: 123.5 million parameters with this vocabulary. GPT-2 has 50,257 tokens
# and shares the weights of input and output; the catalogue's GPT has separate weights.
GPT = Case(
    model="gpt",
    model_size="124m",
    unit="tokens",
    units_per_sample=1024,
    first_batch=8,
    most_batch=1024,
    small_batch=4,
    write=text_writer(64_000_000, 24_576),
    options={"sequence_length": 1024},
)
# User images are scaled to at most 128 pixels.
RESNET = Case(
    model="resnet",
    model_size="50",
    unit="images",
    units_per_sample=1,
    first_batch=64,
    most_batch=8192,
    small_batch=16,
    write=image_writer(16_384, 128, 64),
)
CASES = {"gpt": GPT, "resnet": RESNET}
TINY_CASES = {
    "gpt": Case(
        model="gpt",
        model_size="small",
        unit="tokens",
        units_per_sample=16,
        first_batch=2,
        most_batch=4,
        small_batch=2,
        write=text_writer(200_000, 64),
        options={"sequence_length": 16},
    ),
    "resnet": Case(
        model="resnet",
        model_size="slim",
        unit="images",
        units_per_sample=1,
        first_batch=2,
        most_batch=4,
        small_batch=2,
        write=image_writer(64, 16, 4),
    ),
}
