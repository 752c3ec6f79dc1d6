"""Bundled datasets match their descriptions, and training and validation splits are disjoint."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from trainers.data.dataset import ASSETS_DATA, CharacterSplit, DataOptions, ImageSplit, Split
from trainers.datasets import austen
from trainers.datasets.austen import Austen
from trainers.datasets.digits import Digits
from trainers.datasets.fashion_mnist import BUNDLED, FashionMnist, read_idx, read_pair

CPU = torch.device("cpu")
USUAL = DataOptions()


def digits() -> Digits:
    """Return the digits dataset with default options."""
    return Digits(USUAL)


def bundled_fashion() -> FashionMnist:
    """Return Fashion-MNIST as on a machine without Debian's package."""
    return FashionMnist(USUAL, installed=Path("/nonexistent"))


@pytest.mark.parametrize(
    ("create", "num_train", "num_validation", "side"),
    [(bundled_fashion, 8000, 2000, 28), (digits, 1437, 360, 8)],
)
def test_images_are_what_the_description_says(create, num_train: int, num_validation: int, side: int) -> None:  # type: ignore[no-untyped-def]
    spec = create().spec()
    train, validation = create().load(CPU)
    assert (
        (len(train), len(validation)) == (spec.num_train, spec.num_validation) == (num_train, num_validation)
    )
    inputs, labels = train.batch(torch.arange(100))
    assert inputs.shape == (100, *spec.input_shape) == (100, 1, side, side)
    assert inputs.dtype == torch.uint8 and labels.dtype == torch.int64, "prepared on the model's device"
    everything = train.prepare(train.batch(torch.arange(num_train))[0])
    assert everything.dtype == torch.float32
    assert abs(float(everything.mean())) < 0.02 and abs(float(everything.std()) - 1) < 0.02
    assert len(spec.class_names) == spec.num_classes == 10
    assert f"{num_train:,}" in spec.description and f"{num_validation:,}" in spec.description


def test_digits_of_both_splits_together_are_the_file(tmp_path: Path) -> None:
    train, validation = digits().load(CPU)
    rows = gzip.decompress((ASSETS_DATA / "digits.csv.gz").read_bytes()).decode("ascii").splitlines()
    in_file = sorted(tuple(int(float(cell)) for cell in row.split(",")) for row in rows)
    assert sorted(_rows(train) + _rows(validation)) == in_file, "each row once: no overlap, nothing left out"


def test_fashion_splits_are_disjoint_parts_of_the_file() -> None:
    images, labels = read_pair(BUNDLED, "t10k")
    train, validation = bundled_fashion().load(CPU)
    assert torch.equal(torch.cat([train.images, validation.images]).squeeze(1), images)
    assert torch.equal(torch.cat([train.labels, validation.labels]), labels.long())


def test_austen_survives_the_round_trip_through_numbers() -> None:
    spec = Austen(USUAL).spec()
    train, validation = Austen(USUAL).load(CPU)
    text = austen.whole_text()
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation)
    written = _text_of(train, spec.class_names) + _text_of(validation, spec.class_names)
    cut = len(text) - austen.VALIDATION_CHARACTERS
    in_train, in_validation = spec.num_train * 64, spec.num_validation * 64
    assert written == text[:in_train] + text[cut : cut + in_validation]
    assert in_train + 64 >= cut and in_train <= cut, "training ends where validation begins"
    assert "Elizabeth" in text and len(text) > 3_900_000
    assert "\n" in spec.class_names, "the sampler's prompt"


def test_austen_in_a_trained_models_own_tokens_is_the_same_text() -> None:
    """The fake tokenizer maps each character to its code point plus 1000."""

    class Shifted:
        vocabulary_size = 70_000
        padding = 0

        def encode(self, texts, max_length):  # type: ignore[no-untyped-def]
            return [[ord(character) + 1000 for character in text][:max_length] for text in texts]

        def decode(self, tokens):  # type: ignore[no-untyped-def]
            return "".join(chr(token - 1000) for token in tokens)

    dataset = Austen(DataOptions(tokenizer=Shifted(), sequence_length=100))
    spec = dataset.spec()
    train, validation = dataset.load(CPU)
    assert (spec.num_classes, spec.vocabulary_size, spec.class_names) == (70_000, 70_000, ())
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation)
    assert spec.decode is not None and train.batch(torch.tensor([3]))[0].shape == (1, 100)
    first = [spec.decode(train.batch(torch.tensor([number]))[0][0].tolist()) for number in range(500)]
    assert "".join(first) == austen.whole_text()[:50_000]


def test_fashion_takes_the_full_set_where_it_is_installed(tmp_path: Path) -> None:
    for part, count in (("train", 12), ("t10k", 5)):
        _write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", (count, 28, 28))
        _write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", (count,))
    full = FashionMnist(USUAL, installed=tmp_path)
    train, validation = full.load(CPU)
    assert (len(train), len(validation)) == (12, 5)
    assert "60,000" in full.spec().description and "t10k" in bundled_fashion().spec().description


@pytest.mark.parametrize("damage", ["cut", "magic"])
def test_idx_file_that_is_damaged_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "images.gz"
    header = struct.pack(">HBB2I", 0, 0x08 if damage == "cut" else 0x09, 2, 4, 4)
    path.write_bytes(gzip.compress(header + bytes(15)))
    with pytest.raises(ValueError, match=r"images\.gz"):
        read_idx(path)


def _write_idx(path: Path, shape: tuple[int, ...]) -> None:
    header = struct.pack(f">HBB{len(shape)}I", 0, 0x08, len(shape), *shape)
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.int64) % 10
    path.write_bytes(gzip.compress(header + bytes(values.tolist())))


def _rows(split: Split) -> list[tuple[int, ...]]:
    assert isinstance(split, ImageSplit)
    table = torch.cat([split.images.flatten(1).long(), split.labels[:, None]], dim=1)
    return [tuple(row) for row in table.tolist()]


def _text_of(split: CharacterSplit, vocabulary: tuple[str, ...]) -> str:
    inputs, _ = split.batch(torch.arange(len(split)))
    return "".join(vocabulary[number] for number in inputs.flatten().tolist())
