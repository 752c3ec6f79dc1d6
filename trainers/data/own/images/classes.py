"""The class of each image, and which are for validation: read from the names of the folders they are in."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from trainers.data.own.common.problems import Problems, listed, quoted
from trainers.data.own.images.decoding import is_image
from trainers.data.own.images.sources import ImageSource

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
    ".heic", ".heif", ".avif",
)  # fmt: skip
TEXT_SUFFIXES = (".txt", ".md")
# Of the folders for validation, the one with the first of these words is taken.
TRAIN_WORDS = ("train", "training", "trn", "训练")
VALIDATION_WORDS = (
    "val", "valid", "validation", "dev", "test", "testing", "tst", "eval", "holdout", "验证", "测试",
)  # fmt: skip
_SPLIT_WORD = re.compile(
    rf"(?<![a-z])({'|'.join((*TRAIN_WORDS, *VALIDATION_WORDS))})(?=(set|data|images|imgs|files)?(?![a-z]))"
)
NO_CLASSES = (  # folders of other tasks
    "image", "images", "img", "imgs", "mask", "masks", "label", "labels", "annotations", "ground_truth",
)  # fmt: skip
MIN_PER_CLASS = 2
FEW_PER_CLASS = 10
MUCH = 0.05  # of the images: leaving out more is a user's decision
PER_CLASS_HINT = "Each class is a folder of its own, with its images in it."

Labelled = tuple[str, str, bool | None]  # name, class, and True for validation if folders say so


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledFile:
    """An image; `is_validation` is None unless the names of folders determine it."""

    name: str
    label: int
    is_validation: bool | None


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """The classes by number, every image that has one, and how many there are in all."""

    class_names: tuple[str, ...] = ()
    files: tuple[LabelledFile, ...] = ()
    num_images: int = 0

    def class_counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        counts = Counter(file.label for file in self.files)
        return {name: counts[label] for label, name in enumerate(self.class_names)}


def arrange(
    source: ImageSource, reading: Mapping[str, Any], *, skip: bool, problems: Problems
) -> Arrangement:
    """Read classes and splits from the names of folders, and report faults of these.

    Args:
        reading: of `data_reading`, `join_labels` and `leave_out_rare` count.
        skip: images without a class may be left out.
    """
    images = _images_of(source, problems)
    if not images:
        return Arrangement()
    depth = _depth_of_root(images)
    tops = sorted({_part(name, depth) for name in images} - {""})
    class_depth = depth
    if (sides := _split_of(tops, images, depth)) is not None:
        labelled, class_depth = _with_given_splits(images, depth, sides, problems)
    elif all(_split_of(inside, [], 0) for inside in _inside(images, depth).values()):
        # Each class has its own folders for training and validation.
        sided = {name: _side(_part(name, depth + 1)) for name in images}
        labelled = [(name, _part(name, depth), side != "train") for name, side in sided.items() if side]
    else:
        labelled = [(name, _part(name, depth), None) for name in images]
        _report_inner_folders(_inside(images, depth), problems)
    for name in source.empty_folders:
        if name.count("/") == class_depth:
            problems.note(name, "there is no image in this folder: it is no class.")
    return _numbered(labelled, reading, skip=skip, problems=problems)


def arrange_listed(
    source: ImageSource, labels: Mapping[str, str], reading: Mapping[str, Any], problems: Problems
) -> Arrangement:
    """Return the images that a table names with their labels, wherever they are below the folder."""
    by_name: dict[str, str] = {}
    for name in source.files:
        by_name[name] = by_name.setdefault(name.rpartition("/")[2], name)
    by_stem = {by_name[name].rpartition(".")[0].rpartition("/")[2]: by_name[name] for name in by_name}
    found = {
        name: by_name.get(name) or by_name.get(name.rpartition("/")[2]) or by_stem.get(name)
        for name in labels
    }
    missing = [quoted(name) for name, file in found.items() if file is None]
    if missing:
        where = "the folder of the images"
        message = f"{len(missing):,} of {len(labels):,} images of the table are not there: {listed(missing)}."
        if len(missing) == len(labels):
            problems.fault(where, message, "Give the folder that contains them.")
        else:
            problems.note(where, message, "They are left out.")
    labelled: list[Labelled] = [
        (file, labels[name], None) for name, file in found.items() if file is not None
    ]
    return _numbered(labelled, reading, skip=False, problems=problems)


def sort_classes(names: Iterable[str]) -> list[str]:
    """Return names in order: by value where all are numbers, else by the alphabet."""
    names = sorted(names)
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name, flags=re.ASCII) for name in names)
    return sorted(names, key=float) if are_numbers else names


def check_counts(
    counts: Mapping[str, int], unit: str, problems: Problems, suggested: Mapping[str, str] | None = None
) -> None:
    """Refuse one class only and classes with too few samples; report which have few.

    Args:
        suggested: what leaves out the classes with too few.
    """
    if len(counts) == 1:
        message = f"there is one class only, {quoted(next(iter(counts)))}."
        problems.fault("the classes", message, "At least two are needed to tell apart.")
    lone = {name: count for name, count in counts.items() if count < MIN_PER_CLASS}
    few = [f"{quoted(name)} ({n:,})" for name, n in counts.items() if MIN_PER_CLASS <= n < FEW_PER_CLASS]
    if lone:
        each = "the class has" if len(lone) == 1 else f"{len(lone):,} of {len(counts):,} classes have"
        names = f": {listed([quoted(name) for name in lone])}" if len(lone) > 1 else ""
        hint = "Two are needed: one to train with, one to validate. Add some, or leave the class out."
        num, total = sum(lone.values()), sum(counts.values())
        action = f"Leave out {len(lone):,} of {len(counts):,} classes ({num:,} of {total:,} {unit})"
        problems.fault(
            next(iter(lone)) if len(lone) == 1 else "the classes",
            f"{each} {max(lone.values())} {unit.removesuffix('s')}{names}.",
            hint,
            suggested=suggested,
            action=action if suggested else "",
        )
    if few:
        message = f"these classes have few {unit}: {listed(few)}."
        problems.note("the classes", message, "Little can be learned from so few.")


def alike(name: str) -> str:
    """Return what names have in common that differ in case, spaces or invisible characters only."""
    visible = "".join(x for x in unicodedata.normalize("NFKC", name) if unicodedata.category(x) != "Cf")
    return " ".join(visible.casefold().split())


def _images_of(source: ImageSource, problems: Problems) -> list[str]:
    suffixes = {name: PurePosixPath(name).suffix.lower() for name in source.files}
    images = [
        name
        for name, suffix in suffixes.items()
        if suffix in IMAGE_SUFFIXES or (suffix not in TEXT_SUFFIXES and is_image(source, name))
    ]
    kept = set(images)
    others = [name for name in source.files if name not in kept]
    shown = listed([quoted(name) for name in others], 3)
    num_texts = sum(suffixes[name] in TEXT_SUFFIXES for name in others)
    if not images and num_texts > 1:
        hint = "Texts with classes are read from a table with a column of texts and one of labels."
        problems.fault("the data", f"there is no image in it, but {num_texts:,} texts: {shown}.", hint)
    elif not images:
        hint = f"Images are files ending in {', '.join(IMAGE_SUFFIXES)}. {PER_CLASS_HINT}"
        there = f", but {shown}" if others else ""
        problems.fault("the data", f"there is no image in it{there}.", hint)
    elif others:
        problems.note("the data", f"{len(others):,} files are no images and are left out: {shown}.")
    return images


def _depth_of_root(images: Sequence[str]) -> int:
    """Return the depth of the folder with the classes: often all is in one folder more than needed."""
    depth = 0
    while len({_part(name, depth) for name in images}) == 1 and any(
        _part(name, depth + 1) for name in images
    ):
        depth += 1
    return depth


def _side(folder: str) -> str:
    """Return "train", a word for validation or "", of a folder such as seg_train, testData or val2017."""
    words = _SPLIT_WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", folder).lower())
    found = [word for word, _ in words]
    return "train" if any(word in TRAIN_WORDS for word in found) else min(found, key=_rank, default="")


def _rank(word: str) -> int:
    return VALIDATION_WORDS.index(word)


def _split_of(tops: Iterable[str], images: Sequence[str], depth: int) -> tuple[str, str] | None:
    """Return the folders for training and validation, or None unless there are both.

    Classes may be called train_station and test_tube: images that are directly in such folders are of a
    split only if the folders differ in nothing else.
    """
    sides = {top: _side(top) for top in tops}
    train = [top for top, side in sides.items() if side == "train"]
    held = sorted(
        (top for top, side in sides.items() if side not in ("", "train")), key=lambda t: _rank(sides[t])
    )
    if len(train) != 1 or not held:
        return None
    has_classes = any(_part(name, depth) == train[0] and _part(name, depth + 1) for name in images)
    rests = {_SPLIT_WORD.sub("", top.lower()) for top in (train[0], held[0])}
    return (train[0], held[0]) if has_classes or len(rests) == 1 else None


def _inside(images: Sequence[str], depth: int) -> dict[str, set[str]]:
    """Return the names of the folders in each top folder; "" for images that are directly in it."""
    found: dict[str, set[str]] = {}
    for name in images:
        found.setdefault(_part(name, depth), set()).add(_part(name, depth + 1))
    return found


def _report_inner_folders(inside: Mapping[str, set[str]], problems: Problems) -> None:
    """Report folders within the classes that could be the classes themselves: the same ones in each."""
    names = sorted(set.intersection(*inside.values()) - {""})
    if len(inside) > 1 and len(names) > 1:
        message = f"the folders in them are not used: {listed([quoted(name) for name in names])} are in each."
        hint = "If those are the classes, put all images of one into one folder."
        problems.note(f"the classes {listed(sorted(inside), 3)}", message, hint)


def _with_given_splits(
    images: Sequence[str], depth: int, folders: tuple[str, str], problems: Problems
) -> tuple[list[Labelled], int]:
    """Return the images of the two folders with their classes, and the depth of the classes' folders."""
    train, validation = folders
    labelled: list[Labelled] = []
    class_depth = depth + 1
    for folder in folders:
        own = [name for name in images if _part(name, depth) == folder]
        # Often the folder is in another one of the same name.
        deeper = depth + 1 + _depth_of_root([name.split("/", depth + 1)[-1] for name in own])
        labelled += [(name, _part(name, deeper), folder == validation) for name in own]
        class_depth = deeper if folder == train else class_depth
    held = [label for _, label, is_held in labelled if is_held]
    trained = [label for _, label, is_held in labelled if not is_held]
    if not any(held) and any(trained):
        message = f"its {len(held):,} images have no class folder: they are not used."
        problems.note(validation, message, f"A part of {train} is kept for validation.")
        labelled = [(name, label, None) for name, label, is_held in labelled if not is_held]
    else:
        problems.note(
            "the data", f"{train} is for training, {validation} for validation, as the folders say."
        )
    unused = Counter(_part(name, depth) for name in images)
    for folder in sorted(unused.keys() - {*folders, ""}):
        message = f"its {unused[folder]:,} images are not used: "
        message += f"{train} is for training, {validation} for validation."
        problems.note(folder, message)
    return labelled + [(name, "", None) for name in images if not _part(name, depth)], class_depth


def _numbered(
    labelled: list[Labelled], reading: Mapping[str, Any], *, skip: bool, problems: Problems
) -> Arrangement:
    """Number the classes and check them."""
    total = len(labelled)
    if loose := [name for name, label, _ in labelled if not label]:
        message = (
            f"{len(loose):,} images are in no class folder: {listed([quoted(name) for name in loose], 3)}."
        )
        labelled = [entry for entry in labelled if entry[1]]
        if not labelled:
            problems.fault("the data", message, PER_CLASS_HINT)
            return Arrangement()
        skip = skip or len(loose) <= MUCH * total
        problems.unreadable("the data", message, PER_CLASS_HINT, skip=skip, num_samples=len(loose))
    labelled = _joined(labelled, problems, is_joined=bool(reading.get("join_labels")))
    is_given = any(held is not None for *_, held in labelled)
    if is_given:
        labelled = _checked_splits(labelled, problems, is_reduced=bool(reading.get("leave_out_rare")))
    counts = Counter(label for _, label, _ in labelled)
    if not is_given and reading.get("leave_out_rare"):
        counts = Counter({label: count for label, count in counts.items() if count >= MIN_PER_CLASS})
        num = len(labelled) - counts.total()
        problems.note("the classes", f"{num:,} images of classes with a single one are left out.")
    names = sort_classes(counts)
    number_of = {name: number for number, name in enumerate(names)}
    files = tuple(
        LabelledFile(name=name, label=number_of[label], is_validation=held)
        for name, label, held in labelled
        if label in number_of
    )
    if len(names) > 1 and all(alike(name) in NO_CLASSES for name in names):
        message = f"{listed([quoted(name) for name in names])} are folders of another task."
        problems.fault("the classes", message, "Only classes of whole images can be learned here.")
    # Where folders say what validation is, a class may have its one image in either.
    is_some_left = max(counts.values(), default=0) >= MIN_PER_CLASS
    suggested = {"data_reading": '{"leave_out_rare": true}'} if is_some_left else None
    if len(names) == 1 or not is_given:
        ordered = {name: counts[name] for name in names}
        check_counts(ordered if not is_given else {names[0]: FEW_PER_CLASS}, "images", problems, suggested)
    if is_some_left and len(names) > 5 and 5 * len(names) > len(files):
        message = f"there are {len(names):,} classes in {len(files):,} images, more than one per five."
        problems.note("the classes", message, "Is each class meant to be one?")
    return Arrangement(class_names=tuple(names), files=files, num_images=total)


def _joined(labelled: list[Labelled], problems: Problems, *, is_joined: bool) -> list[Labelled]:
    """Join classes that look the same if that is wanted, or if one of them is in validation only."""
    groups: dict[str, list[str]] = {}
    trained = {label for _, label, held in labelled if not held}
    for label in sorted({label for _, label, _ in labelled}, key=lambda label: (label not in trained, label)):
        groups.setdefault(alike(label), []).append(label)
    same = [group for group in groups.values() if len(group) > 1]
    if not same:
        return labelled
    shown = "; ".join(" and ".join(map(quoted, group)) for group in same[:3])
    message = f"names differ in case, spaces or invisible characters only: {shown}."
    own = {label for group in same for label in group if label in trained and not is_joined}
    num = len(groups) + sum(len(own.intersection(group)) - 1 for group in same if own.intersection(group))
    if num == len(groups):
        problems.note("the classes", message, "They are joined.")
    else:
        suggested = {"data_reading": '{"join_labels": true}'}
        action = f"Join them: {num:,} classes become {len(groups):,}"
        problems.note("the classes", f"{message} Each is a class.", suggested=suggested, action=action)
    first = {label: label if label in own else group[0] for group in groups.values() for label in group}
    return [(name, first[label], held) for name, label, held in labelled]


def _checked_splits(labelled: list[Labelled], problems: Problems, *, is_reduced: bool) -> list[Labelled]:
    """Report classes that are in one of the splits only; those of validation cannot be used."""
    train = {label for _, label, held in labelled if not held}
    held_back = {label for _, label, held in labelled if held}
    if missing := sorted(train - held_back):
        shown = listed([quoted(name) for name in missing])
        message = f"these classes are not in the images for validation: {shown}."
        problems.note("the classes", message, "How well they are learned is not measured.")
    unknown = sorted(held_back - train)
    kept = [entry for entry in labelled if entry[1] in train]
    if not unknown:
        return labelled
    num, of = len(labelled) - len(kept), f"{len(unknown):,} of {len(train | held_back):,} classes"
    shown = listed([quoted(name) for name in unknown])
    message = f"{len(unknown):,} classes of the images for validation are not in those for training: {shown}."
    if is_reduced:
        problems.note("the classes", message, f"Their {num:,} images are left out.")
        return kept
    is_some_left = any(held for *_, held in kept)
    problems.fault(
        "the classes",
        message,
        "Add images for training, or leave these classes out.",
        suggested={"data_reading": '{"leave_out_rare": true}'} if is_some_left else None,
        action=f"Leave out {of} ({num:,} of {len(labelled):,} images)" if is_some_left else "",
    )
    return labelled


def _part(name: str, depth: int) -> str:
    """Return the folder of a file at some depth; "" for a file that is higher up."""
    parts = name.split("/", depth + 1)
    return parts[depth] if len(parts) > depth + 1 else ""
