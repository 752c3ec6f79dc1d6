"""Which image is of which class, and which are for validation: read from the folders they lie in."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainers.data.own.common.problems import Problems, listed, quoted
from trainers.data.own.images.image_sources import ImageSource

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
    ".heic", ".heif", ".avif",
)  # fmt: skip
# Words in the names of folders. Of those for validation, the first one there is taken.
TRAIN_WORDS = ("train", "training", "trn")
VALIDATION_WORDS = ("val", "valid", "validation", "dev", "test", "testing", "tst", "eval", "holdout")
MIN_PER_CLASS = 2
FEW_PER_CLASS = 10

Labelled = tuple[str, str, bool | None]  # name, class, whether a folder says it is for validation
PER_CLASS_HINT = "Each class is a folder of its own, with its images in it."


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledFile:
    """One image; `is_validation` is None where no folder says it."""

    name: str
    label: int
    is_validation: bool | None


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The classes by number, and every image."""

    class_names: tuple[str, ...]
    files: tuple[LabelledFile, ...]

    def class_counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        counts = Counter(file.label for file in self.files)
        return {name: counts[label] for label, name in enumerate(self.class_names)}


def arrange(source: ImageSource, problems: Problems) -> Arrangement:
    """Read classes and splits from the folders' names; what is wrong with them is added to `problems`."""
    images = _images_only(source.files, problems)
    if not images:
        hint = f"Images are files ending in {', '.join(IMAGE_SUFFIXES)}. {PER_CLASS_HINT}"
        problems.fault("the data", "there is no image in it.", hint)
        return Arrangement(class_names=(), files=())
    root = _root(images)
    depth = len(root)
    # Everything else that is a folder but has no image in it is a class somebody forgot to fill.
    empty = sorted({*_folders_of(source.files), *source.empty_folders} - _folders_of(images))
    tops = Counter(_part(name, depth) for name in images if _part(name, depth))
    labelled: list[Labelled] = []
    class_depth = depth
    if (folders := _split_folders(tops)) is not None:
        labelled, class_depth = _given_splits(images, depth, folders, problems)
    elif all(_split_folders(Counter(inside)) for inside in _inside(images, depth).values()):
        # Each class has its own folders of training and validation.
        sides = {name: _side(_part(name, depth + 1)) for name in images}
        labelled = [(name, _part(name, depth), side == "validation") for name, side in sides.items() if side]
    else:
        labelled = [(name, _part(name, depth), None) for name in images]
    for name in empty:
        if name.split("/")[:depth] == root and name.count("/") == class_depth:
            problems.fault(name, "the class is empty.", "Put images into the folder, or delete it.")
    return _number(labelled, problems)


def sort_classes(names: Iterable[str]) -> list[str]:
    """Return names in order: by value where all are numbers, else by the alphabet."""
    names = sorted(names)
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name, flags=re.ASCII) for name in names)
    return sorted(names, key=float) if are_numbers else names


def check_counts(
    counts: dict[str, int], unit: str, problems: Problems, suggested: Mapping[str, str] | None = None
) -> None:
    """Refuse one class only and classes with too few samples; report which have few.

    Args:
        suggested: what leaves out the classes with too few.
    """
    if len(counts) == 1:
        message = f"there is one class only, {quoted(next(iter(counts)))}."
        problems.fault("the classes", message, "At least two are needed to tell apart.")
    lone = {name: count for name, count in counts.items() if count < MIN_PER_CLASS}
    few = [
        f"{quoted(name)} ({count})"
        for name, count in counts.items()
        if MIN_PER_CLASS <= count < FEW_PER_CLASS
    ]
    if lone:
        each = "the class has" if len(lone) == 1 else f"{len(lone):,} of {len(counts):,} classes have"
        one = unit.removesuffix("s")
        message = f"{each} {max(lone.values())} {one}" + (
            f": {listed([quoted(name) for name in lone])}." if len(lone) > 1 else "."
        )
        hint = "Two are needed: one to train with, one to validate. Add some, or leave the class out."
        total, num = sum(counts.values()), sum(lone.values())
        action = (
            f"Leave out {len(lone):,} of {len(counts):,} classes ({num:,} of {total:,} {unit})"
            if suggested
            else ""
        )
        where = next(iter(lone)) if len(lone) == 1 else "the classes"
        problems.fault(where, message, hint, suggested=suggested, action=action)
    if few:
        message = f"these classes have few {unit}: {listed(few)}."
        problems.note("the classes", message, "Little can be learned from so few.")


def _images_only(names: list[str], problems: Problems) -> list[str]:
    images = [name for name in names if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]
    if images and len(images) < len(names):
        kept = set(images)
        others = [name for name in names if name not in kept]
        message = f"{len(others):,} files are no images by their names and are left out: "
        problems.note("the data", message + listed([quoted(name) for name in others], 3) + ".")
    return images


def _root(images: list[str]) -> list[str]:
    """Return the folder below which the classes lie: often everything is in one folder more than needed."""
    root: list[str] = []
    while True:
        depth = len(root)
        tops = {_part(name, depth) for name in images}
        if len(tops) > 1 or any(name.count("/") <= depth + 1 for name in images):
            return root
        root.append(tops.pop())


def _side(folder: str) -> str:
    """Return "train", "validation" or "" of a folder such as seg_train, Testing or val2017."""
    words = re.split(r"[^a-z]+", folder.lower())
    if any(word in words for word in TRAIN_WORDS):
        return "train"
    return "validation" if any(word in words for word in VALIDATION_WORDS) else ""


def _split_folders(tops: Counter[str]) -> tuple[str, str] | None:
    """Return the folders of training and validation, or None unless there are both."""
    train = [name for name in tops if _side(name) == "train"]
    validation = [name for name in tops if _side(name) == "validation"]
    if len(train) != 1 or not validation:
        return None
    words = {name: re.split(r"[^a-z]+", name.lower()) for name in validation}
    order = [
        min(VALIDATION_WORDS.index(word) for word in words[name] if word in VALIDATION_WORDS)
        for name in validation
    ]
    return train[0], validation[order.index(min(order))]


def _inside(images: list[str], depth: int) -> dict[str, list[str]]:
    """Return the folders that the images of each top folder lie in."""
    found: dict[str, list[str]] = {}
    for name in images:
        found.setdefault(_part(name, depth), []).append(_part(name, depth + 1))
    return found


def _given_splits(
    images: list[str], depth: int, folders: tuple[str, str], problems: Problems
) -> tuple[list[Labelled], int]:
    """Return the images of the two folders with their classes, and the depth of the classes' folders."""
    train, validation = folders
    labelled: list[Labelled] = []
    depths = []
    for folder in folders:
        own = [name for name in images if _part(name, depth) == folder]
        # Often the folder lies in another one of the same name.
        deeper = depth + 1
        while len({_part(name, deeper) for name in own}) == 1 and all(
            name.count("/") > deeper + 1 for name in own
        ):
            deeper += 1
        depths.append(deeper)
        labelled += [(name, _part(name, deeper), folder == validation) for name in own]
    loose = {
        side: [name for name, label, is_held in labelled if is_held == side and not label]
        for side in (False, True)
    }
    if (
        loose[True]
        and len(loose[True]) == sum(is_held is True for *_, is_held in labelled)
        and not loose[False]
    ):
        message = f"its {len(loose[True]):,} images have no class folder: they are not used."
        problems.note(validation, message, f"A part of {train} is kept for validation.")
        labelled = [(name, label, None) for name, label, is_held in labelled if not is_held]
    others = Counter(_part(name, depth) for name in images if _part(name, depth) not in (*folders, ""))
    for top, count in others.items():
        problems.note(
            top, f"its {count:,} images are not used: {train} is for training, {validation} for validation."
        )
    labelled += [(name, "", None) for name in images if not _part(name, depth)]
    if all(is_held is None for *_, is_held in labelled):
        return labelled, depths[0]
    problems.note("the data", f"{train} is for training, {validation} for validation, as the folders say.")
    found = [
        {label for _, label, is_validation in labelled if is_validation is side} for side in (False, True)
    ]
    for label in sorted(found[1] - found[0] - {""}):
        hint = f"Add it to {train}, or delete it from {validation}."
        problems.fault(f"{validation}/{label}", f"the class is not in {train}.", hint)
    for label in sorted(found[0] - found[1] - {""}):
        problems.note(
            f"{train}/{label}", f"the class is not in {validation}: how well it is learned is not seen."
        )
    return labelled, depths[0]


def arrange_listed(source: ImageSource, labels: Mapping[str, str], problems: Problems) -> Arrangement:
    """Return the images that a table names with their labels, wherever they lie below the folder."""
    by_name: dict[str, str] = {}
    for name in source.files:
        by_name[name] = by_name.setdefault(name.rpartition("/")[2], name)
    by_stem = {by_name[name].rpartition(".")[0].rpartition("/")[2]: by_name[name] for name in by_name}
    found = {
        name: by_name.get(name) or by_name.get(name.rpartition("/")[2]) or by_stem.get(name)
        for name in labels
    }
    missing = [name for name, file in found.items() if file is None]
    if missing:
        message = (
            f"{len(missing):,} of {len(labels):,} images of the table are not there: "
            f"{listed([quoted(name) for name in missing])}."
        )
        if len(missing) == len(labels):
            problems.fault("the folder of the images", message, "Give the folder that contains them.")
        else:
            problems.note("the folder of the images", message, "They are left out.")
    return _number([(file, labels[name], None) for name, file in found.items() if file is not None], problems)


def _number(labelled: list[Labelled], problems: Problems) -> Arrangement:
    loose = [name for name, label, _ in labelled if not label]
    if loose:
        message = (
            f"{len(loose):,} images lie in no class folder: {listed([quoted(name) for name in loose], 3)}."
        )
        problems.fault("the data", message, PER_CLASS_HINT)
    classes = sort_classes({label for _, label, _ in labelled if label})
    _check_alike(classes, problems)
    number_of = {name: number for number, name in enumerate(classes)}
    files = tuple(
        LabelledFile(name=name, label=number_of[label], is_validation=is_validation)
        for name, label, is_validation in labelled
        if label
    )
    arrangement = Arrangement(class_names=tuple(classes), files=files)
    # Where folders say what validation is, a class may have its one image in either.
    if files and files[0].is_validation is None:
        check_counts(arrangement.class_counts(), "images", problems)
    elif len(classes) == 1:
        check_counts({classes[0]: FEW_PER_CLASS}, "images", problems)
    return arrangement


def _check_alike(names: list[str], problems: Problems) -> None:
    """Refuse classes that look the same to everybody; say where only capitals tell them apart."""
    by_shown: dict[str, str] = {}
    by_letters: dict[str, str] = {}
    for name in names:
        shown = unicodedata.normalize("NFC", name)
        letters = shown.casefold()
        if shown in by_shown:
            message = "there are two classes of this name, written with different bytes (Unicode)."
            problems.fault(name, message, "Put their images into one folder.")
        elif letters in by_letters:
            other = by_letters[letters]
            problems.note(name, f"differs from the class {quoted(other)} in capital letters only.")
        by_shown[shown] = by_letters[letters] = name


def _folders_of(names: list[str]) -> set[str]:
    """Return every folder above any of the files."""
    folders = {name.rpartition("/")[0] for name in names}
    for folder in list(folders):
        parts = folder.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return folders - {""}


def _part(name: str, depth: int) -> str:
    """Return the folder of a file at some depth; "" for a file that lies higher."""
    parts = name.split("/", depth + 1)
    return parts[depth] if len(parts) > depth + 1 else ""
