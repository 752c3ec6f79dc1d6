"""Which image is of which class, and which are for validation: read from the folders they lie in."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainers.data.own.common.problems import Problems, listed, quoted
from trainers.data.own.images.image_sources import ImageSource

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
)  # fmt: skip
TRAIN_NAMES = ("train", "training")
VALIDATION_NAMES = ("val", "valid", "validation", "test", "testing")  # the first one there is taken
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
    folders = _split_folders(tops)
    if folders is None:
        labelled: list[Labelled] = [(name, _part(name, depth), None) for name in images]
        class_depth = depth
    else:
        labelled = _given_splits(images, depth, folders, problems)
        class_depth = depth + 1
    for name in empty:
        if name.split("/")[:depth] == root and name.count("/") == class_depth:
            problems.fault(name, "the class is empty.", "Put images into the folder, or delete it.")
    return _number(labelled, problems)


def sort_classes(names: Iterable[str]) -> list[str]:
    """Return names in order: by value where all are numbers, else by the alphabet."""
    names = sorted(names)
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name, flags=re.ASCII) for name in names)
    return sorted(names, key=float) if are_numbers else names


def check_counts(counts: dict[str, int], unit: str, problems: Problems) -> None:
    """Refuse one class only and classes with too few samples; say which have few."""
    if len(counts) == 1:
        only = next(iter(counts))
        message = f"there is one class only, {quoted(only)}."
        problems.fault("the classes", message, "At least two are needed to tell apart.")
    few = []
    for name, count in counts.items():
        if count < MIN_PER_CLASS:
            message = f"the class has {count} {unit if count != 1 else unit.removesuffix('s')}."
            hint = "It needs at least two: one to train with, one to validate. Add some, or delete the class."
            problems.fault(name, message, hint)
        elif count < FEW_PER_CLASS:
            few.append(f"{quoted(name)} ({count})")
    if few:
        message = f"these classes have few {unit}: {listed(few)}."
        problems.note("the classes", message, "Little can be learnt from so few.")


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


def _split_folders(tops: Counter[str]) -> tuple[str, str] | None:
    """Return the folders of training and validation when there are such, and nothing else."""
    by_name = {name.lower(): name for name in tops}
    train = next((by_name[name] for name in TRAIN_NAMES if name in by_name), None)
    validation = next((by_name[name] for name in VALIDATION_NAMES if name in by_name), None)
    is_all = all(name in (*TRAIN_NAMES, *VALIDATION_NAMES) for name in by_name)
    return (train, validation) if train and validation and is_all else None


def _given_splits(
    images: list[str], depth: int, folders: tuple[str, str], problems: Problems
) -> list[Labelled]:
    train, validation = folders
    labelled: list[Labelled] = []
    others: Counter[str] = Counter()
    for name in images:
        top = _part(name, depth)
        if not top:
            labelled.append((name, "", None))
        elif top in folders:
            labelled.append((name, _part(name, depth + 1), top == validation))
        else:
            others[top] += 1
    for top, count in others.items():
        problems.note(top, f"its {count:,} images are not used: {validation} is the validation split.")
    found = [
        {label for _, label, is_validation in labelled if is_validation is side} for side in (False, True)
    ]
    for label in sorted(found[1] - found[0] - {""}):
        hint = f"Add it to {train}, or delete it from {validation}."
        problems.fault(f"{validation}/{label}", f"the class is not in {train}.", hint)
    for label in sorted(found[0] - found[1] - {""}):
        problems.note(
            f"{train}/{label}", f"the class is not in {validation}: how well it is learnt is not seen."
        )
    return labelled


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
