"""Tests of running text:

every character is preserved for any chunk size, and other encodings are reported.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.own_files import (
    fault,
    own,
    own_cache,  # noqa: F401 - a fixture
)
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


@pytest.mark.parametrize(
    ("text", "code", "name"),
    [
        ("one\ntwo café \n", "latin-1", "cp1252"),
        ("one\n\ntwo “café”\n", "cp1252", "cp1252"),
        ("one\ntwo", "utf-16", "utf-16"),
        ("one two", "utf-16-le", "utf-16-le"),
        ("one two", "utf-16-be", "utf-16-be"),
        ("Это был очень длинный текст\n" * 5, "cp1251", "cp1251"),
        ("这个屏幕不错我买了很好\n" * 5, "gb18030", "gb18030"),
    ],
)
def test_encodings_are_recognised(tmp_path: Path, text: str, code: str, name: str) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(text.encode(code))
    encoding = reading.find_encoding(path)
    assert encoding.name == name and encoding.note
    assert "".join(reading.text_chunks(path, encoding, 10)) == text


def test_faults_reach_the_person(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"x" * 5000 + b"\n\0\n")
    assert fault(tmp_path / "t.txt").line == 2
    assert "is the least" in fault(write_text(tmp_path / "short.txt", "short text")).message
    (tmp_path / "empty.txt").write_bytes(b"")
    assert fault(tmp_path / "empty.txt").message == "the file is empty."
    (tmp_path / "x.bin").write_bytes(b"\x7fELF\x00\x01\x02" + bytes(range(200)))
    assert "no kind that can be read" in fault(tmp_path / "x.bin").message
    assert "the spreadsheet cannot be read" in fault(write_text(tmp_path / "x.xlsx")).message
    assert "Save its text as" in fault(write_text(tmp_path / "x.pdf")).hint
    assert "nothing at this path" in fault(tmp_path / "nowhere").message
    assert (
        "cannot be learnt from running text"
        in fault(write_text(tmp_path / "t2.txt"), task="text_classification").message
    )
    (tmp_path / "folder").mkdir()
    write_text(tmp_path / "folder" / "t.txt")
    assert "such as 't.txt'" in fault(tmp_path / "folder").hint
    with pytest.raises(DataError, match="no path is given"):
        Own(DataOptions()).spec()


class Pairs:
    """A tokenizer with two characters per token: 1001 for "ab", 1000 for all other pairs."""

    vocabulary_size = 1002
    padding = 0

    def encode(self, texts, max_length):  # type: ignore[no-untyped-def]
        return [[1001 if text[i : i + 2] == "ab" else 1000 for i in range(0, len(text), 2)] for text in texts]

    def decode(self, tokens):  # type: ignore[no-untyped-def]
        return "".join("ab" if token == 1001 else "??" for token in tokens)


def test_trained_models_tokens_are_written_piece_by_piece(tmp_path: Path) -> None:
    path = write_text(tmp_path / "t.txt", "abababab.\n" * 20_000)
    data = own(path, tokenizer=Pairs(), sequence_length=5)
    spec = data.spec()
    assert (spec.vocabulary_size, spec.class_names) == (1002, ()) and spec.decode is not None
    assert len(data.prepared.array("tokens")) == 100_000
    train, _ = data.load(CPU)
    assert train.batch(torch.tensor([7]))[0].tolist() == [[1001, 1001, 1001, 1001, 1000]]
    assert data.fingerprint != own(path, sequence_length=5).fingerprint
