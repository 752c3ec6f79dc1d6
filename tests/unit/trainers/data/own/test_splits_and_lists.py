"""Images: splits by the names of folders, lists in a table, names in a zip, copies, and more than 8 bits."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.own_files import (
    fault,
    inspected,
    make_image,
    own,
    own_cache,  # noqa: F401 - a fixture
    write,
)
from tests.unit.trainers.data.own.test_people_files import said

LAYOUTS = {
    "prefix and nesting": ("seg_train/seg_train/{}", "seg_test/seg_test/{}"),
    "dev": ("train/{}", "dev/{}"),
    "capitals": ("Training/{}", "Testing/{}"),
    "years": ("train2017/{}", "val2017/{}"),
    "suffix": ("images_train/{}", "images_valid/{}"),
    "deeper": ("data/v1/train/{}", "data/v1/eval/{}"),
    "classes above": ("{}/train", "{}/test"),
}


def make(root: Path, folder: str, first: int = 0, count: int = 6) -> None:
    for number, name in enumerate(("cats", "dogs")):
        for n in range(count):
            colour = (60 * number + 10, 5 * (first + n), 99)
            make_image(root / folder.format(name) / f"{first + n}.png", colour)


@pytest.mark.parametrize("name", LAYOUTS)
def test_splits_are_recognised_by_their_names(tmp_path: Path, name: str) -> None:
    train, held = LAYOUTS[name]
    make(tmp_path / "d", train, 0, 8)
    make(tmp_path / "d", held, 20, 3)
    spec = own(tmp_path / "d").spec()
    assert (spec.class_names, spec.num_train, spec.num_validation) == (("cats", "dogs"), 16, 6)


@pytest.mark.parametrize("other", ["masks", "unlabeled", "pred"])
def test_folders_beside_the_split_are_named(tmp_path: Path, other: str) -> None:
    make(tmp_path / "d", "train/{}", 0, 8)
    make(tmp_path / "d", "val/{}", 20, 3)
    make(tmp_path / "d", other + "/{}", 30, 2)
    answer = inspected(tmp_path / "d")
    assert answer["preview"]["class_counts"] == {"cats": 11, "dogs": 11} and other in said_of(answer)


def test_a_test_folder_without_classes_is_not_used(tmp_path: Path) -> None:
    make(tmp_path / "d", "train/{}", 0, 10)
    make_image(tmp_path / "d" / "test" / "1.png", (1, 2, 3))
    spec = own(tmp_path / "d").spec()
    assert (spec.num_train, spec.num_validation) == (16, 4)


@pytest.mark.parametrize(
    "leftover", ["@eaDir", "$RECYCLE.BIN", "__MACOSX", ".ipynb_checkpoints", "lost+found"]
)
def test_leftovers_are_no_class(tmp_path: Path, leftover: str) -> None:
    make(tmp_path / "d", "{}")
    make_image(tmp_path / "d" / leftover / "x.png", (1, 2, 3))
    (tmp_path / "d" / "cats" / "Thumbs.db").write_bytes(b"x")
    assert own(tmp_path / "d").spec().class_names == ("cats", "dogs")


@pytest.mark.parametrize(
    ("code", "name"), [("utf-8", "Äpfel"), ("cp932", "りんごの写真"), ("gbk", "苹果的照片集")]
)
def test_names_in_a_zip_without_a_mark(tmp_path: Path, code: str, name: str) -> None:
    make(tmp_path / "d", "{}", 0, 4)
    write_zip(tmp_path / "raw.zip", tmp_path / "d", name.encode(code))
    assert name in own(tmp_path / "raw.zip").spec().class_names


def write_zip(path: Path, root: Path, folder: bytes) -> None:
    """Write a zip whose names are these bytes, without the mark of UTF-8 that zipfile would set."""
    placeholder = b"X" * len(folder)
    with zipfile.ZipFile(path, "w") as archive:
        for number, file in enumerate(sorted(root.rglob("*.png"))):
            name = placeholder.decode() if "cats" in str(file) else "dogs"
            archive.writestr(f"{name}/{number}.png", file.read_bytes())
    path.write_bytes(path.read_bytes().replace(placeholder, folder))


@pytest.mark.parametrize("bits", [8, 10, 12, 16])
def test_deep_images_are_scaled_by_the_bits_in_use(tmp_path: Path, bits: int) -> None:
    for number, name in enumerate(("dark", "light")):
        (tmp_path / "d" / name).mkdir(parents=True)
        for n in range(6):
            values = np.full((12, 12), (2**bits - 1) * (n + 1 + 6 * number) // 12, dtype=np.uint16)
            Image.fromarray(values).save(tmp_path / "d" / name / f"{n}.png")
    own_data = own(tmp_path / "d")
    own_data.spec()
    pixels = own_data.prepared.array("images").slice(0, 12)
    assert pixels.max() == 255 and len(np.unique(pixels)) == 12


def test_images_that_all_look_the_same_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for n in range(4):
            make_image(tmp_path / "d" / name / f"{n}.png", 0)
    assert "all of them look the same" in fault(tmp_path / "d").message


def test_copies_are_named_and_left_out_by_a_click(tmp_path: Path) -> None:
    make(tmp_path / "d", "{}", 0, 8)
    make_image(tmp_path / "d" / "cats" / "copy.png", (10, 0, 99))
    make_image(tmp_path / "d" / "dogs" / "wrong.png", (10, 5, 99))
    answer = inspected(tmp_path / "d")
    assert "the same image is also in another class: cats/1.png" in said_of(answer)
    (click,) = [one for one in answer["problems"] if one["suggested"]]
    assert click["action"] == "Leave out 2 copies (11%)"
    spec = own(tmp_path / "d", reading=click["suggested"]["data_reading"]).spec()
    assert spec.num_train + spec.num_validation == 16


@pytest.mark.parametrize("spelling", ["{}.png", "photos/{}.png"])
def test_images_that_a_table_lists(tmp_path: Path, spelling: str) -> None:
    for n in range(20):
        make_image(tmp_path / "photos" / f"{n}.png", (10, 5 * n, 99))
    rows = [f"{spelling.format(n)},{('cat', 'dog')[n % 2]}" for n in range(20)]
    path = write(tmp_path / "list.csv", "file,label", *rows, "gone.png,cat")
    asked = inspected(path)
    assert not asked["ok"] and "Give the folder that contains the images" in said_of(asked)
    folder = asked["problems"][0]["suggested"]["images_path"]
    answer = inspected(path, images_path=folder)
    assert answer["ok"] and answer["preview"]["class_counts"] == {"cat": 10, "dog": 10}
    assert "1 of 21 images of the table are not there" in said_of(answer)
    spec = own(path, images_path=folder).spec()
    assert (spec.task, spec.num_train, spec.num_validation) == ("image_classification", 16, 4)


def said_of(answer: dict[str, object]) -> str:
    return said({**answer, "columns": []})
