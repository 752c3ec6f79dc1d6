"""Tests of images in class folders: correct images are read exactly, faulty ones are named."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.own_files import colours, fault, faults, make_image, make_images, make_zip, own
from trainers.data.dataset import Augmentation, ImageSplit
from trainers.data.own import images
from trainers.data.own.splits import MappedImageSplit

CPU = torch.device("cpu")


def all_samples(split) -> list[tuple[tuple[int, ...], int]]:  # type: ignore[no-untyped-def]
    inputs, labels = split.batch(torch.arange(len(split)))
    return sorted(zip(colours(inputs), labels.tolist(), strict=True))


@pytest.mark.parametrize("as_zip", [False, True])
def test_every_image_comes_once_with_its_class(tmp_path: Path, as_zip: bool) -> None:
    path = make_images(tmp_path / "pets", {"cats": 10, "dogs": 5})
    if as_zip:
        path = make_zip(tmp_path / "pets.zip", path, below="some/folder/")
    data = own(path)
    spec = data.spec()
    assert (spec.class_names, spec.input_shape) == (("cats", "dogs"), (3, 16, 20))
    assert (spec.num_train, spec.num_validation) == (12, 3), "80 to 20, of each class alike"
    train, validation = data.load(CPU)
    assert isinstance(train, ImageSplit)
    assert (len(train), len(validation)) == (12, 3)
    labels = validation.batch(torch.arange(3))[1].tolist()
    assert sorted(labels) == [0, 0, 1]
    expected = [((0, k, 99), 0) for k in range(10)] + [((10, k, 99), 1) for k in range(5)]
    assert sorted(all_samples(train) + all_samples(validation)) == expected


def test_mapped_split_gives_the_same_as_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = own(make_images(tmp_path / "pets", {"cats": 20, "dogs": 20}))
    whole, _ = data.load(CPU)
    monkeypatch.setattr(images.cache, "SMALL_BYTES", 0)
    mapped, _ = data.load(CPU)
    assert isinstance(mapped, MappedImageSplit) and len(mapped) == len(whole)
    indices = torch.tensor([5, 0, 31, 5])
    mapped.batch(indices)  # opens the map, which must stay out of the pickle
    other = pickle.loads(pickle.dumps(mapped))
    for split in (mapped, other):
        for ours, theirs in zip(split.batch(indices), whole.batch(indices), strict=True):
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    assert len(pickle.dumps(mapped)) < 3000
    inputs = mapped.batch(indices)[0]
    torch.manual_seed(0)
    varied = mapped.prepare(inputs, Augmentation(flip=True))
    torch.manual_seed(0)
    assert torch.equal(varied, whole.prepare(inputs, Augmentation(flip=True)))


def test_normalised_training_images_have_mean_zero_and_deviation_one(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "d" / name).mkdir(parents=True)
        for index in range(10):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "d" / name / f"{index}.png")
    train, _ = own(tmp_path / "d").load(CPU)
    prepared = train.prepare(train.batch(torch.arange(16))[0])
    assert prepared.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (prepared.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    plain, _ = own(tmp_path / "d", normalise=False).load(CPU)
    bytes_ = plain.batch(torch.arange(16))[0]
    assert torch.allclose(plain.prepare(bytes_), bytes_ / 255)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("10", "9", "2"), ("2", "9", "10")),
        (("b", "B", "a"), ("B", "a", "b")),
        (("10", "9", "x"), ("10", "9", "x")),
    ],
)
def test_classes_are_in_order(tmp_path: Path, names: tuple[str, ...], order: tuple[str, ...]) -> None:
    make_images(tmp_path / "d", dict.fromkeys(names, 2))
    assert own(tmp_path / "d").spec().class_names == order


def test_grey_only_when_all_are_grey(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for index in range(3):
            make_image(tmp_path / "d" / name / f"{index}.png", 100 + index)
    assert own(tmp_path / "d").spec().input_shape == (1, 16, 20)
    make_image(tmp_path / "d" / "a" / "colour.png")
    assert own(tmp_path / "d").spec().input_shape == (3, 16, 20)


def cut_off(path: Path) -> None:
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG whose header claims this size, with almost no content."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


BROKEN = {
    "cut.png": (cut_off, "cannot be decoded"),
    "text.png": (lambda path: path.write_text("no image"), "not an image"),
    "bomb.png": (lambda path: path.write_bytes(png_of_size(10_000, 10_000)), "10,000 × 10,000 pixels"),
    "huge.png": (lambda path: path.write_bytes(png_of_size(60_000, 60_000)), "more than 80 million pixels"),
    "no_width.png": (lambda path: path.write_bytes(png_of_size(0, 5)), "not an image"),
    "one_line.png": (lambda path: path.write_bytes(png_of_size(2**31 - 1, 1)), "pixels"),
    "nowhere.png": (lambda path: path.symlink_to(path.parent / "gone"), "cannot be decoded"),
    "script.png": (
        lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
        "not an image",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_image_is_named_and_left_out_only_when_asked(tmp_path: Path, name: str) -> None:
    make_images(tmp_path / "d", {"a": 10, "b": 10})
    make, words = BROKEN[name]
    make(tmp_path / "d" / "a" / name)  # type: ignore[no-untyped-call]
    problem = fault(tmp_path / "d")
    assert problem.where == f"a/{name}" and words in problem.message, problem
    data = own(tmp_path / "d", skip_unreadable=True)
    spec = data.spec()
    assert spec.num_train + spec.num_validation == 20
    assert [note.where for note in data.problems.shown] == [f"a/{name}"]


def test_more_images_than_are_tried_come_out_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a sample of many images is decoded during inspection; preparation finds faults in the rest."""
    path = make_images(tmp_path / "d", {"a": 60, "b": 60})
    plain = all_samples(own(path).load(CPU)[0])
    os.utime(path / "a" / "000.png", ns=(1, 1))  # invalidates the cache
    monkeypatch.setattr(images, "NUM_DECODED_IN_INSPECTION", 10)
    assert all_samples(own(path).load(CPU)[0]) == plain
    (path / "a" / "007.png").write_bytes(b"no image")
    cut_off(path / "b" / "041.png")
    assert {problem.where for problem in faults(path)} <= {"a/007.png", "b/041.png"}
    data = own(path, skip_unreadable=True)
    assert data.spec().num_train + data.spec().num_validation == 118
    assert sorted(note.where for note in data.problems.shown) == ["a/007.png", "b/041.png"]
    samples = all_samples(data.load(CPU)[0]) + all_samples(data.load(CPU)[1])
    assert all(colour[0] == 10 * label and colour[2] == 99 for colour, label in samples)


def test_validation_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    make_images(tmp_path / "d" / "train", {"a": 4, "b": 3})
    for name in ("a", "b"):
        (tmp_path / "d" / "val" / name).mkdir(parents=True)
        (tmp_path / "d" / "val" / name / "x.png").write_text("no image")
    problem = fault(tmp_path / "d", skip_unreadable=True)
    assert problem.message == "no readable image is left for validation."
