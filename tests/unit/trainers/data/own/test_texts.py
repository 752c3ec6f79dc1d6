"""Tests of running text: every character is preserved for any chunk size."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.own_files import fault, own
from trainers.data.dataset import CharacterSplit, DataOptions
from trainers.data.own import reading
from trainers.data.own import texts as texts_module
from trainers.data.own.dataset import Own
from trainers.data.own.problems import DataError
from trainers.data.own.splits import MappedTextSplit

CPU = torch.device("cpu")
TEXT = "Ein schöner Tag – नमस्ते 😀!\r\nzwei\n" * 60


def write_text(path: Path, text: str = TEXT) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.mark.parametrize("chunk_bytes", [1, 5, 10**6])
def test_characters_may_lie_across_pieces(tmp_path: Path, chunk_bytes: int) -> None:
    path = write_text(tmp_path / "t.txt")
    encoding = reading.find_encoding(path)
    assert "".join(reading.text_chunks(path, encoding, chunk_bytes)) == TEXT.replace("\r\n", "\n")


def test_tokens_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module.reading, "CHUNK_BYTES", 7)
    text = TEXT.replace("\r\n", "\n")
    data = own(write_text(tmp_path / "t.txt"), sequence_length=8)
    spec = data.spec()
    assert spec.class_names == tuple(sorted(set(text))) and spec.num_classes == len(set(text))
    train, validation = data.load(CPU)
    assert isinstance(train, CharacterSplit)
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation)
    inputs, targets = train.batch(torch.arange(len(train)))
    written = "".join(spec.class_names[token] for token in inputs.flatten().tolist())
    assert written == text[: len(written)] and len(text) * 0.9 < len(written)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    held = "".join(
        spec.class_names[token] for token in validation.batch(torch.arange(1))[0].flatten().tolist()
    )
    border = len(text) - int(len(text) * texts_module.VALIDATION_SHARE)
    assert held == text[border : border + 8], "the end of the text, which training does not see"


@pytest.mark.parametrize("num_distinct", [40, 300, 40_000])
def test_mapped_split_gives_the_same_as_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_distinct: int
) -> None:
    points = np.random.default_rng(0).integers(0x10000, 0x10000 + num_distinct, 60_000)
    data = own(write_text(tmp_path / "t.txt", "".join(map(chr, points))), sequence_length=16)
    width = data.prepared.array("tokens").dtype.itemsize
    assert width == (1 if num_distinct <= 256 else 2)
    whole = data.load(CPU)
    monkeypatch.setattr(texts_module.cache, "SMALL_BYTES", 0)
    mapped = data.load(CPU)
    for ours, theirs in zip(mapped, whole, strict=True):
        assert isinstance(ours, MappedTextSplit) and len(ours) == len(theirs)
        indices = torch.tensor([len(ours) - 1, 0, 2])
        for split in (ours, pickle.loads(pickle.dumps(ours))):
            for one, other in zip(split.batch(indices), theirs.batch(indices), strict=True):
                assert one.dtype == other.dtype == torch.int64 and torch.equal(one, other)
    assert len(pickle.dumps(mapped[0])) < 1000


def test_faults_reach_the_person(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"x" * 5000 + b"\n\0\n")
    assert fault(tmp_path / "t.txt").line == 2
    assert "the spreadsheet cannot be read" in fault(write_text(tmp_path / "x.xlsx")).message
    assert (
        "cannot be learnt from running text"
        in fault(write_text(tmp_path / "t2.txt"), task="text_classification").message
    )
    with pytest.raises(DataError, match="no path is given"):
        Own(DataOptions()).spec()
