"""Variants of users' image data: how each is read, which messages are shown, and what each button changes."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ddp_gui.plan.own_data import _parse
from ddp_gui.train.own_data import own_data
from tests.unit.own_files import inspected, own
from tests.unit.trainers.data.own.test_people_files import said
from trainers.data.own import HEIF_REQUIREMENT, image_files
from trainers.files.plain_files import REPOSITORY

Tree = dict[str, bytes]


_seeds = itertools.count()


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    if form in ("HEIF", "AVIF"):
        import pillow_heif

        pillow_heif.register_heif_opener()
    image.save(file, form, **options)
    return file.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (16, 12)) -> Image.Image:
    """Return a unique random image."""
    values = np.random.default_rng(next(_seeds)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def images(*folders: str, count: int = 6, suffix: str = ".png", form: str = "PNG", mode: str = "RGB") -> Tree:
    return {
        f"{folder}/{number}{suffix}": encoded(noise(mode), form)
        for folder in folders
        for number in range(count)
    }


def split(train: str, held: str, names: tuple[str, ...] = ("cats", "dogs")) -> Tree:
    """Return 8 training and 3 validation images of each class."""
    return images(*map(train.format, names), count=8) | images(*map(held.format, names), count=3)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Image files and their expected reading.

    `classes` are the images per class, None if the data is rejected; `told` is "" if no message is allowed;
    `action` is part of the label of a button, and `after` are the images per class after a click on it.
    """

    files: Tree
    classes: Mapping[str, int] | None = None
    split: tuple[int, int] | None = None
    told: tuple[str, ...] = ()
    action: str = ""
    after: Mapping[str, int] | None = field(default=None)


PETS = {"cats": 6, "dogs": 6}
SPLIT = {"cats": 11, "dogs": 11}
SAME = encoded(noise())
TRUNCATED = encoded(noise(size=(64, 64)))[:3000]
LEFTOVERS = (
    ".DS_Store", "cats/.DS_Store", "cats/Thumbs.db", "dogs/desktop.ini", "cats/._1.png",
    "__MACOSX/cats/._1.png", "@eaDir/1.png", "$RECYCLE.BIN/1.png", ".ipynb_checkpoints/1.png",
    "lost+found/1.png",
)  # fmt: skip

LAYOUTS = {
    "prefix and nesting": ("seg_train/seg_train/{}", "seg_test/seg_test/{}"),
    "years": ("train2017/{}", "val2017/{}"),
    "camel case": ("trainData/{}", "testData/{}"),
    "Chinese": ("训练集/{}", "测试集/{}"),
    "Spanish": ("entrenamiento/{}", "validación/{}"),
    "classes above": ("{}/train", "{}/test"),
    "before the classes": ("train_{}", "test_{}"),
    "after the classes": ("{}-train", "{}-val"),
    "without a separator": ("images/{}Train", "images/{}Test"),
}

CASES = {
    **{name: Case(files=split(*way), classes=SPLIT, split=(16, 6)) for name, way in LAYOUTS.items()},
    "class names contain train, test and val": Case(
        files=images("train_station", "test_tube", "val_d_isere"),
        classes={"test_tube": 6, "train_station": 6, "val_d_isere": 6},
    ),
    "split words before classes in other capitals, one of them without a test": Case(
        files=split("Train_{}", "test_{}") | images("Train_Cows", count=4),
        classes={"Cows": 4, "cats": 11, "dogs": 11},
        split=(20, 6),
        told=("not in the images for validation: 'Cows'",),
    ),
    "train before two of three classes": Case(
        files=images("train_city", "train_coast", "test_city", "test_coast", "bus"),
        classes=dict.fromkeys(("bus", "test_city", "test_coast", "train_city", "train_coast"), 6),
    ),
    "classes are called train, test and plane": Case(
        files=images("train", "test", "plane"),
        classes={"plane": 6, "test": 6, "train": 6},
        told=("the folders test, train they are read as classes",),
    ),
    "a class called train in a split": Case(
        files=split("train/{}", "val/{}", ("train", "bus")), classes={"bus": 11, "train": 11}, split=(16, 6)
    ),
    "split without classes": Case(files=images("train", "test"), told=("class folder",)),
    "other folders beside the split": Case(
        files=split("train/{}", "val/{}") | images("masks/cats", "unlabeled", count=2),
        classes=SPLIT,
        split=(16, 6),
        told=("masks its 2 images are not used", "unlabeled its 2 images are not used"),
    ),
    "test without classes": Case(
        files=images("train/cats", "train/dogs") | images("test", count=4),
        classes=PETS,
        told=("its 4 images have no class folder",),
    ),
    "images and masks": Case(
        files=images("images", "masks"), told=("6 are masks of others, for another task",)
    ),
    "images and their masks of another folder": Case(
        files=images("train", "train_masks"), told=("6 are masks of others, for another task",)
    ),
    "masks in each class": Case(
        files=images("cats/images", "cats/masks", "dogs/images", "dogs/masks"),
        classes=PETS,
        told=("12 are masks of others, for another task, such as 'cats/masks/0.png'",),
    ),
    "masks beside the images": Case(
        files={
            f"{c}/{c} ({n}){end}.png": encoded(noise())
            for c in PETS
            for n in range(6)
            for end in ("", "_mask")
        },
        classes=PETS,
        told=("12 are masks of others",),
    ),
    "masks of other names": Case(
        files=images("cats", "dogs") | {f"masks/m{n}.png": encoded(noise()) for n in range(6)},
        classes=PETS | {"masks": 6},
        told=("'masks' may be of another task",),
    ),
    "masks as a class": Case(files=images("mask", "no_mask"), classes={"mask": 6, "no_mask": 6}),
    "two folders for training": Case(
        files=images("train1/cats", "train1/dogs", "train2/cats", "train2/dogs", count=4)
        | images("test/cats", "test/dogs", count=3),
        classes=SPLIT,
        split=(16, 6),
        told=("train1 with train2 is for training, test for validation",),
    ),
    "folds of their own split": Case(
        files=split("fold1/train/{}", "fold1/val/{}") | split("fold2/train/{}", "fold2/val/{}"),
        told=("each has folders for training and validation, with the same classes",),
    ),
    "one class": Case(files=images("pets/cats"), told=("there is one class only, 'cats'",)),
    "groups above classes": Case(
        files=images("2019/cats", "2019/dogs", "2020/cats", "2020/dogs", count=3),
        classes={"2019": 6, "2020": 6},
        told=("'cats', 'dogs'",),
    ),
    **{
        f"the same classes in {shown}": Case(
            files=images(*(f"{top}/{name}" for top in shown.split(", ") for name in PETS), count=3),
            classes=PETS,
            told=(f"the folders {shown} have the same classes: they are read together",),
        )
        for shown in ("fold1, fold2", "test, val")
    },
    "long images": Case(
        files=images("cats", "dogs")
        | {f"dogs/long{n}.png": encoded(noise(size=(90, 9 + n))) for n in range(2)},
        classes={"cats": 6, "dogs": 8},
        told=("2 of 14 are cropped to less than half: dogs/long0.png",),
    ),
    "other class in validation": Case(
        files=split("train/{}", "val/{}") | images("val/cows", "val/pigs", count=2),
        told=("2 classes", "not in those for training: 'cows', 'pigs'"),
        action="Leave out 2 of 4 classes (4 of 26 images)",
        after=SPLIT,
    ),
    "class names differ in capitals and spaces": Case(
        files=images("cats", "Cats ", "dogs", count=4),
        classes={"Cats ": 4, "cats": 4, "dogs": 4},
        told=("differ in case, spaces or invisible characters only",),
        action="Join",
        after={"Cats ": 8, "dogs": 4},
    ),
    "a class of one image": Case(
        files=images("cats", "dogs") | images("cows", count=1),
        told=("the class has 1 image",),
        action="Leave out 1 of 3 classes (1 of 13 images)",
        after=PETS,
    ),
    "an empty class": Case(
        files=images("cats", "dogs") | {"cows/.gitkeep": b""}, classes=PETS, told=("cows", "no image")
    ),
    "files beside folders": Case(
        files=images("cats", "dogs") | images(".", count=4),
        told=("4 images are in no class folder",),
        action="Leave out 4 of 16 samples",
        after=PETS,
    ),
    "other files": Case(
        files=images("cats", "dogs") | {"README.md": b"# pets", "cats/list.txt": b"1\n"},
        classes=PETS,
        told=("2 files are no images",),
    ),
    "leftovers": Case(
        files=images("cats", "dogs", count=10) | dict.fromkeys(LEFTOVERS, b"x"),
        classes={"cats": 10, "dogs": 10},
        told=("",),
    ),
    "a table beside the images": Case(
        files=images("images", count=12)
        | {"labels.csv": ("file,kind\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(12))).encode()},
        classes={"a": 6, "b": 6},
        told=("the labels of the images are in 'labels.csv'",),
    ),
    "parts of a set beside their table": Case(
        files={f"set_part_{1 + n // 6}/img_{n:03}.png": encoded(noise()) for n in range(12)}
        | {
            "labels.csv": (
                "image,kind\n" + "".join(f"img_{n:03},{'ab'[n % 2]}\n" for n in range(12))
            ).encode()
        },
        classes={"a": 6, "b": 6},
        told=("the labels of the images are in 'labels.csv'",),
    ),
    "images for testing with the names of those of the table": Case(
        files=images("train", count=12)
        | images("test", count=4)
        | {"train.csv": ("image,kind\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(12))).encode()},
        classes={"a": 6, "b": 6},
        told=("the labels of the images are in 'train.csv'",),
    ),
    "a list of boxes": Case(
        files=images("photos", count=12)
        | {
            "list.csv": (
                "file,class,xmin\n" + "".join(f"{n}.png,{'ab'[n % 2]},1\n" for n in range(12))
            ).encode()
        },
        told=("there is one class only, 'photos'",),
    ),
    "parts of a set": Case(files=images("part_1", "part_2", "part_3"), told=("are in no class folder",)),
    "a list of names and labels": Case(
        files={f"{n:03}.png": encoded(noise()) for n in range(12)}
        | {"labels.txt": "".join(f"{n:03}.png {n % 2}\n" for n in range(12)).encode()},
        classes={"0": 6, "1": 6},
        told=("the labels of the images are in 'labels.txt'",),
    ),
    "boxes of objects": Case(
        files=images("train/images", "valid/images")
        | {f"{side}/labels/{n}.txt": b"0 0.5 0.5 0.2 0.2\n" for side in ("train", "valid") for n in range(6)},
        told=("'train/labels/0.txt' may be for object detection",),
    ),
    "no suffixes": Case(files=images("cats", "dogs", suffix="") | {"cats/LICENSE": b"MIT"}, classes=PETS),
    "wrong suffixes": Case(
        files=images("cats", suffix=".jpg") | images("dogs", suffix=".png", form="WEBP"), classes=PETS
    ),
    "HEIC": Case(files=images("cats", "dogs", suffix=".heic", form="HEIF"), classes=PETS),
    "AVIF": Case(files=images("cats", "dogs", suffix=".avif", form="AVIF"), classes=PETS),
    "grey and colour": Case(files=images("cats", mode="L") | images("dogs"), classes=PETS),
    "several frames": Case(
        files=images("cats")
        | {
            f"dogs/{n}.{form.lower()}": encoded(
                noise(), form, save_all=True, append_images=[noise(), noise()]
            )
            for n in range(2)
            for form in ("GIF", "TIFF", "WEBP")
        },
        classes=PETS,
        told=("6 images have several frames or pages", "the first is used"),
    ),
    "the same image in two classes": Case(
        files=images("cats", "dogs") | {"cats/s.png": SAME, "dogs/s.png": SAME},
        classes={"cats": 7, "dogs": 7},
        told=("2 images are in several classes", "cats/s.png", "dogs/s.png"),
        action="Leave out 2 images",
        after=PETS,
    ),
    "copies": Case(
        files=images("cats", "dogs") | {"cats/s.png": SAME, "cats/t.png": SAME},
        classes={"cats": 8, "dogs": 6},
        told=("1 images are copies of others",),
        action="Leave out 1 image (",
        after={"cats": 7, "dogs": 6},
    ),
    "copies in training and validation": Case(
        files=split("train/{}", "val/{}") | {"train/cats/s.png": SAME, "val/cats/s.png": SAME},
        classes={"cats": 13, "dogs": 11},
        split=(17, 7),
        told=("1 of 7 validation images are also in training", "val/cats/s.png"),
        action="Leave out 1 image (",
        after={"cats": 12, "dogs": 11},
    ),
    "truncated and empty files": Case(
        files=images("cats", "dogs", count=12)
        | {"cats/x.png": b"", "dogs/x.png": b""}
        | {f"cats/t{n}.png": TRUNCATED for n in range(3)},
        told=("2 of 29: it cannot be decoded (it is empty)", "3 of 29: it cannot be decoded"),
        action="Leave out 5 of 29 samples",
        after={"cats": 12, "dogs": 12},
    ),
    "all are alike": Case(
        files={f"{name}/{n}.png": SAME for name in PETS for n in range(6)},
        told=("all of them look the same",),
    ),
    "classes in file names": Case(
        files={f"{('cat', 'dog')[n % 2]}.{n}.jpg": encoded(noise(), "JPEG") for n in range(12)},
        classes={"cat": 6, "dog": 6},
        told=("in the names of the files, such as 'cat.0.jpg'",),
    ),
    "classes of one sign in file names": Case(
        files={f"{'猫狗'[n % 2]}_{n}.jpg": encoded(noise(), "JPEG") for n in range(12)},
        classes={"狗": 6, "猫": 6},
        told=("the classes are in the names of the files",),
    ),
    "names of cameras": Case(
        files={f"{('IMG', 'DSC')[n % 2]}_{n}.jpg": encoded(noise(), "JPEG") for n in range(12)}
    ),
}
OPTIONS = {"data_path": "path", "data_reading": "reading"}


def write(root: Path, files: Tree, as_zip: bool) -> Path:
    if as_zip:
        with zipfile.ZipFile(root / "d.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"top/{name.removeprefix('./')}", content)
        return root / "d.zip"
    for name, content in files.items():
        (root / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "d" / name).write_bytes(content)
    return root / "d"


def check(answer: dict[str, Any], case: Case) -> None:
    told = said({**answer, "columns": []})
    assert answer["ok"] is (case.classes is not None), told
    for words in case.told:
        assert words in told if words else told == "", told
    if case.classes is not None:
        assert answer["preview"]["class_counts"] == case.classes, told
        if case.split is not None:
            about = answer["dataset"]
            assert (about["num_train"], about["num_validation"]) == case.split, told
    assert answer["num_problems"] <= 4, told


def clicks(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the changes that each button makes, by label, as ddp_gui/train/own_data.py shows them."""
    found: dict[str, dict[str, Any]] = {}

    class Buttons(HTMLParser):
        values: str | None = None

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.values = dict(attrs).get("data-values") or self.values

        def handle_data(self, data: str) -> None:
            if self.values:
                found[data] = json.loads(self.values)
            self.values = None

    Buttons().feed(own_data(_parse({**answer, "dataset": None})))
    return found


@pytest.mark.parametrize("name", CASES)
def test_images_are_read_as_an_analyst_reads_them(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = write(tmp_path, case.files, as_zip="split" in name)
    answer = inspected(path)
    check(answer, case)
    offered = clicks(answer)
    if not case.action:
        assert not offered
        return
    [values] = [values for words, values in offered.items() if case.action in words] or [offered]
    options = {OPTIONS.get(name, name): value for name, value in values.items()}
    after = inspected(Path(options.pop("path", path)), **options)
    check(after, Case(files={}, classes=case.after))


COLOURS = {
    "EXIF": (lambda: turned(6), (255, 0, 0), (0, 0, 255)),
    "CMYK": (lambda: encoded(Image.new("CMYK", (16, 12), (0, 255, 255, 0)), "JPEG"), (254, 0, 0), None),
    "palette with transparency": (
        lambda: encoded(Image.new("RGB", (16, 12)).quantize(), transparency=0), (255, 255, 255), None
    ),
    "see-through": (lambda: encoded(Image.new("RGBA", (16, 12), (255, 0, 0, 0))), (255, 255, 255), None),
}  # fmt: skip


def turned(orientation: int) -> bytes:
    """Return an image whose left half is red after the EXIF orientation is applied."""
    image = Image.new("RGB", (12, 16), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 12, 8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, exif=exif)


@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_those_that_people_see(tmp_path: Path, name: str) -> None:
    make, left, right = COLOURS[name]
    path = write(tmp_path, images("cats", "dogs") | {"cats/odd.png": make()}, as_zip=False)
    data = own(path)
    look = data.kind.inspect(data.problems)
    pixels = look.decoded["cats/odd.png"]
    assert np.abs(pixels[:, 6, 2].astype(int) - left).max() <= 3
    assert right is None or np.abs(pixels[:, 6, 13].astype(int) - right).max() <= 3


@pytest.mark.parametrize(
    ("form", "kind", "values"),
    [
        ("PNG", np.uint16, [(2**10 - 1) * (n + 1) // 12 for n in range(12)]),
        ("PNG", np.uint16, [(2**16 - 1) * (n + 1) // 12 for n in range(12)]),
        ("TIFF", np.int32, [-1000 + 150 * n for n in range(12)]),
    ],
    ids=["10 bits", "16 bits", "below zero"],
)
def test_deep_images_are_scaled_by_the_values_in_use(
    tmp_path: Path, form: str, kind: type, values: list[int]
) -> None:
    files = {
        f"{'ab'[n // 6]}/{n}.{form.lower()}": encoded(Image.fromarray(np.full((12, 12), value, kind)), form)
        for n, value in enumerate(values)
    }
    data = own(write(tmp_path, files, as_zip=False))
    data.spec()
    pixels = data.prepared.array("images").slice(0, 12)
    assert pixels.max() == 255 and len(np.unique(pixels)) == 12
    assert (pixels.min() == 0) == (kind is np.int32)


ZIP_NAMES = {
    "utf-8": "Äpfel",
    "cp850": "Bücher",
    "gbk": "苹果的照片集",
    "cp932": "りんごの写真",
    "cp1251": "кошки",
}


@pytest.mark.parametrize("code", ZIP_NAMES)
def test_names_in_a_zip_without_a_mark(tmp_path: Path, code: str) -> None:
    folder = ZIP_NAMES[code].encode(code)
    placeholder = b"X" * len(folder)
    path = tmp_path / "raw.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in images(placeholder.decode(), "dogs").items():
            archive.writestr(name, content)
    path.write_bytes(path.read_bytes().replace(placeholder, folder))
    answer = inspected(path)
    assert answer["preview"]["class_counts"] == {ZIP_NAMES[code]: 6, "dogs": 6}, said(answer)
    assert ("names in it are read as" in said(answer)) == (code != "utf-8")
    named = inspected(path, reading=json.dumps({"encoding": code}))
    assert named["preview"]["class_counts"] == {ZIP_NAMES[code]: 6, "dogs": 6}
    assert code == "utf-8" or not inspected(path, reading='{"encoding": "hex"}')["ok"]


def test_links_to_images_are_read_and_links_to_folders_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, images("cats", "dogs"), as_zip=False)
    (path / "cats" / "link.png").symlink_to(write(tmp_path / "cats", {"x.png": SAME}, as_zip=False) / "x.png")
    (path / "cows").symlink_to(path / "dogs")
    answer = inspected(path)
    assert answer["preview"]["class_counts"] == {"cats": 7, "dogs": 6}
    assert "cows is a link to a folder and is not followed" in said(answer)
    (tmp_path / "link").symlink_to(path)
    assert inspected(tmp_path / "link")["preview"]["class_counts"] == answer["preview"]["class_counts"]


def pet(n: int) -> str:
    return ("cat", "dog")[n % 2]


@pytest.mark.parametrize(
    ("file", "cell"), [("{}.png", "{}.png"), ("{}.png", "photos/{}.png"), ("{:04}.png", "{:04}")]
)
def test_images_that_a_table_lists(tmp_path: Path, file: str, cell: str) -> None:
    """The cells may lack the suffix."""
    files = {f"photos/{file.format(n)}": encoded(noise()) for n in range(20)}
    path = write(tmp_path, files, as_zip=False) / "list.csv"
    path.write_text("".join(["id,breed\n", *(f"{cell.format(n)},{pet(n)}\n" for n in [*range(20), 99])]))
    asked = inspected(path)
    assert not asked["ok"] and "the cells are names of image files" in said(asked)
    assert "Give the folder that contains the images" in said(asked)
    answer = inspected(path, images_path=asked["problems"][0]["suggested"]["images_path"])
    assert answer["ok"] and answer["preview"]["class_counts"] == EVEN, said(answer)
    assert "1 of 21 images of the table are not there" in said(answer)
    about = answer["dataset"]
    assert (about["task"], about["num_train"], about["num_validation"]) == ("image_classification", 16, 4)


EVEN = {"cat": 10, "dog": 10}
LISTED: dict[str, tuple[dict[str, str], str, dict[str, int], str]] = {
    "paths of another machine": (
        {f"{c}/{n}.png": rf"C:\my\photos\{c}\{n}.png,{pet(c == 'b')}" for c in "ab" for n in range(10)},
        "file,label",
        EVEN,
        "",
    ),
    "a split": (
        {
            f"{n}.png": f"{n}.png,{pet(n)},{'test' if n > 17 else 'val' if n > 11 else 'train'}"
            for n in range(20)
        },
        "file,label,split",
        {"cat": 9, "dog": 9},
        "12 rows (train) are for training, 6 rows (val) for validation, 2 rows (test)",
    ),
    "one label in several columns": (
        {f"{n}.png": f"{n}.png,{int(n % 3 == 0)},{int(n % 3 == 1)},{int(n % 3 == 2)}" for n in range(21)},
        "file,cat,dog,cow",
        {"0": 14, "1": 7},
        "it and 'cat', 'dog' are one label in several columns",
    ),
}


@pytest.mark.parametrize("kind", LISTED)
def test_images_of_a_list_are_found_and_its_columns_are_used(tmp_path: Path, kind: str) -> None:
    rows, header, classes, words = LISTED[kind]
    path = write(tmp_path, {f"photos/{name}": encoded(noise()) for name in rows}, as_zip=False)
    (path / "list.csv").write_text("\n".join([header, *rows.values()]))
    answer = inspected(path / "list.csv", images_path=str(path / "photos"))
    assert answer["ok"] and answer["preview"]["class_counts"] == classes, said(answer)
    assert words in said(answer) and "are not there" not in said(answer)
    about = answer["dataset"]
    assert kind != "a split" or (about["num_train"], about["num_validation"]) == (12, 6)


def test_a_list_of_one_name_in_two_folders_is_not_guessed(tmp_path: Path) -> None:
    files = {f"photos/{c}/{n}.png": encoded(noise()) for c in "ab" for n in range(10)}
    path = write(tmp_path, files, as_zip=False)
    rows = [f"{n}.png,{('cat', 'dog')[n % 2]}\n" for n in range(10)]
    (path / "list.csv").write_text("".join(["file,label\n", *rows]))
    answer = inspected(path / "list.csv", images_path=str(path / "photos"))
    assert not answer["ok"] and "10 of 10 images of the table are not there" in said(answer)


@pytest.mark.parametrize(
    ("folder", "name"), [("photos/", "{}.png"), ("photos/", "photos/{}.png"), ("", "{}")]
)
def test_labels_in_a_table_in_the_zip(tmp_path: Path, folder: str, name: str) -> None:
    files = {f"set/{folder}{n}.png": encoded(noise()) for n in range(20)}
    rows = "".join(f"{name.format(n)},{('cat', 'dog')[n % 2]}\n" for n in range(20))
    path = write(tmp_path, files | {"set/labels.csv": f"file,label\n{rows}".encode()}, as_zip=True)
    answer = inspected(path)
    assert answer["ok"] and answer["preview"]["class_counts"] == {"cat": 10, "dog": 10}, said(answer)
    assert "the labels of the images are in 'top/set/labels.csv'" in said(answer)


def review(folder: str, n: int) -> tuple[str, bytes]:
    words = ("a great and lovely film", "a bad and boring film")["neg" in folder or "space" in folder]
    return f"{folder}/{n}_7.txt", f"{words} with\na line of number {n} in {folder}".encode()


def reviews(*folders: str, count: int = 12) -> Tree:
    return dict(review(folder, n) for folder in folders for n in range(count))


REVIEWS = {"neg": 12, "pos": 12}
TEXT_FOLDERS: dict[str, Case] = {
    "class folders": Case(files=reviews("neg", "pos"), classes=REVIEWS),
    "film reviews as distributed": Case(
        files={
            f"aclImdb/{name}": text
            for name, text in reviews("train/neg", "train/pos", "test/neg", "test/pos").items()
        }
        | {f"aclImdb/{name}": text for name, text in reviews("train/unsup").items()}
        | {
            "aclImdb/README": b"about",
            "aclImdb/imdb.vocab": b"the",
            "aclImdb/train/urls_pos.txt": b"http://a",
        },
        classes={"neg": 24, "pos": 24},
        split=(24, 24),
        told=("12 texts are in a folder of texts without a label", "2 texts are in no class folder"),
    ),
    "many texts outside of classes": Case(
        files=reviews("neg", "pos") | reviews("."), told=("12 texts are in no class folder",)
    ),
    "one class": Case(files=reviews("a/pos", "a/b"), classes={"b": 12, "pos": 12}),
    "classes in file names": Case(
        files={name.replace("/", "_", 1): text for name, text in reviews("neg", "pos").items()},
        classes=REVIEWS,
        told=("the classes are in the names of the files",),
    ),
}


@pytest.mark.parametrize("name", TEXT_FOLDERS)
def test_texts_in_class_folders(tmp_path: Path, name: str) -> None:
    case = TEXT_FOLDERS[name]
    answer = inspected(write(tmp_path, case.files, as_zip=name == "class folders"))
    told = said({**answer, "columns": []})
    assert answer["ok"] is (case.classes is not None), told
    assert all(words in told for words in case.told), told
    if case.classes is not None:
        assert (
            answer["task"] == "text_classification" and answer["preview"]["class_counts"] == case.classes
        ), told
        about = answer["dataset"]
        assert case.split is None or (about["num_train"], about["num_validation"]) == case.split


@pytest.mark.parametrize("suffix", [".heic", ".jpg"])
def test_what_reads_heic_is_installed_by_a_click(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = write(tmp_path, images("cats", "dogs", suffix=suffix, form="HEIF"), as_zip=False)
    monkeypatch.delitem(image_files.pillow()[0].OPEN, "HEIF")
    answer = inspected(path)
    assert "HEIC images need pillow-heif" in said(answer) and not answer["ok"]
    button = f'data-install="{answer["problems"][0]["package"]}"'
    assert button in own_data(_parse(answer), may_install=True) and button not in own_data(_parse(answer))
    tested = (REPOSITORY / "requirements-dev.txt").read_text().splitlines()
    assert HEIF_REQUIREMENT in tested, "the version that is installed by the click"
