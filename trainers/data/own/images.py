"""Own images: classes and splits from folder names or a table, inspection and preparation."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch

from trainers.contract.config.sections import parse_reading
from trainers.data.dataset import IMAGE_CLASSIFICATION, DataOptions, DataSpec, ImageSplit, Split
from trainers.data.own import cache, image_files
from trainers.data.own.cache import (
    ArrayWriter,
    MappedArray,
    PreparedData,
    fingerprint,
    require_space,
    write_arrays,
)
from trainers.data.own.formats import NOT_TAKEN
from trainers.data.own.image_files import (
    ImageHeader,
    ImageSource,
    Pixels,
    Range,
    Shape,
    UnreadableImageError,
    is_image,
    source_of,
)
from trainers.data.own.problems import Problems, listed, quoted
from trainers.data.own.processes import ReadProgress
from trainers.data.own.splits import MappedImageSplit, Rows, split_rows, whole

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm",
    ".heic", ".heif", ".avif",
)  # fmt: skip
# If several folders could be for validation, the one with the first of VALIDATION_WORDS is used.
TRAIN_WORDS = ("train", "training", "trainings", "trn", "训练", "entrenamiento", "entrainement", "treino")
VALIDATION_WORDS = (
    "val", "valid", "validation", "dev", "test", "testing", "tst", "eval", "holdout", "验证", "测试",
    "validacion", "validacao", "prueba", "teste",
)  # fmt: skip
_SPLIT_NOUNS = "set|data|images|imgs|files|daten|bilder|satz"
_SPLIT_WORD = re.compile(
    rf"(?<![a-z])({'|'.join((*TRAIN_WORDS, *VALIDATION_WORDS))})(?=({_SPLIT_NOUNS})?(?![a-z]))"
)
_FOLD = re.compile(r"(?:.*[ _-])?(?:k?-?fold|cv|part|batch|shard|chunk|subset|images?|imgs?)[ _-]?\d+")
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Folders of other tasks, and the names of masks: masks/1.png, train_masks/1.png, 1_mask.png.
_IMAGES = r"(?:jpeg|left)?(?:images?|imgs?)(?:8bit)?"
_MASKS = r"(?:masks?|segmentation(?:class|object|s)?|gt(?:fine)?|ground[ _-]?truths?|labels?|annotations?)"
_MASK = re.compile(rf"((?<![^/]){_MASKS}|[ _-]masks)(?=/)|[ ._-]+({_MASKS}|seg)([ _-]?\d+)?(?=\.\w+$)", re.I)
_NOT_OF_NAME = re.compile(rf"{_MASK.pattern}|(?<![^/]){_IMAGES}(?=/)|\.\w+$", re.I)
_BOXES = re.compile(r"(?<![^/])(?:labels?|annotations?)/.*\.(?:txt|json)$|\.coco\.json$|\.xml$", re.I)
MIN_PER_CLASS = 2
FEW_PER_CLASS = 10
DOMINANT = 0.9  # share of the samples
MUCH = 0.05  # share of the images: leaving out more is the user's decision
PER_CLASS_HINT = "Each class is a folder of its own, with its {unit} in it."
VARIATIONS = "\ufe0e\ufe0f"  # after a character: as text, as emoji
UNLABELLED = ("unsup", "unlabeled", "unlabelled", "unlabeled data")
# The part of a file's name that may be its class: cat.17.jpg, Egyptian_Mau_3.jpg, 3_cat.jpg.
_WORDS = r"((?:[^\W\d_]{2,}|[\u3400-\u9fff])(?:[ _-][^\W\d_]+)*)"
_CLASS_IN_NAME = re.compile(rf"{_WORDS}[ ._(-]*\d|\d+[ _-]+{_WORDS}\.")
CAMERA_NAMES = {
    "img", "image", "images", "dsc", "dscn", "dscf", "pic", "photo", "picture", "frame", "scan", "screenshot",
    "file", "bild", "foto", "pxl", "sample", "train", "test", "val", "untitled",
}  # fmt: skip


class LabelledFile(NamedTuple):
    """A file and its class; `is_validation` is None unless folder names determine the split."""

    name: str
    label: str
    is_validation: bool | None


Listed = Mapping[str, tuple[str, bool | None]]  # label and side of each image named in a table


def labelled_files(
    source: ImageSource, names: Sequence[str], unit: str, *, skip: bool, problems: Problems
) -> list[LabelledFile]:
    """Return the files that have a class, with their class and split, by folder names or file names.

    Args:
        unit: what the files are, as in "3 images".
        skip: True if files without a class may be left out.
    """
    virtual = _by_split_words(names)
    labelled, class_depth = _by_folders(list(virtual), unit, tried := Problems())
    if len({label for _, label, _ in labelled}) < 2 and (by_file := by_file_names(names)):
        virtual = {name: by_file[file] for name, file in _by_split_words(list(by_file)).items()}
        labelled, class_depth = _by_folders(list(virtual), unit, problems)
        example = quoted(names[0].rpartition("/")[2])
        problems.note("the classes", f"the classes are in the names of the files, such as {example}.")
    else:
        problems.add(tried)
    labelled = [file._replace(name=virtual[file.name]) for file in labelled]
    for name in source.empty_folders:
        if name.count("/") == class_depth:
            problems.note(name, f"there is no {unit.removesuffix('s')} in this folder: it is no class.")
    kept = [file for file in labelled if alike(file.label) not in UNLABELLED]
    if num := len(labelled) - len(kept):
        message = f"{num:,} {unit} are in a folder of {unit} without a label: they are not used."
        problems.note("the classes", message)
    if loose := [file.name for file in kept if not file.label]:
        message = f"{len(loose):,} {unit} are in no class folder: {listed(list(map(quoted, loose)), 3)}."
        hint = PER_CLASS_HINT.format(unit=unit)
        if len(loose) == len(kept):
            problems.fault("the data", message, hint)
            return []
        skip = skip or len(loose) <= MUCH * len(kept)
        problems.unreadable("the data", message, hint, skip=skip, num_samples=len(loose))
    return [file for file in kept if file.label]


def _by_folders(names: Sequence[str], unit: str, problems: Problems) -> tuple[list[LabelledFile], int]:
    """Return the files with class and split by folder names, and the depth of the class folders."""
    depth = _depth_of_root(names)
    tops = sorted({_part(name, depth) for name in names} - {""})
    if (sides := _split_of(tops, names, depth)) is not None:
        return _with_given_splits(names, depth, sides, unit, problems)
    inside = _inside(names, depth)
    if all(_split_of(each, [], 0) for each in inside.values()):
        if len(inside) > 1 and len(set.intersection(*_inside(names, depth, 2).values()) - {""}) > 1:
            message = "each has folders for training and validation, with the same classes."
            location = f"the folders {listed(sorted(inside))}"
            problems.fault(location, message, "Give the path of one of them.")
            return [], depth
        # Each class has its own folders for training and validation.
        sided = {name: side for name in names if (side := side_of(_part(name, depth + 1)))}
        shown = listed(sorted({_part(name, depth + 1) for name in sided}))
        problems.note("the data", f"the folders {shown} in each class are for training and validation.")
        return [
            LabelledFile(name, _part(name, depth), side != "train") for name, side in sided.items()
        ], depth
    kinds = {side_of(top) or ("fold" if _FOLD.fullmatch(top.lower()) else "") for top in inside}
    if len(inside) > 1 and not kinds & {"", "train"} and len(set.intersection(*inside.values()) - {""}) > 1:
        shown = listed(sorted(inside))
        problems.note("the data", f"the folders {shown} have the same classes: they are read together.")
        return [LabelledFile(name, _part(name, depth + 1), None) for name in names], depth + 1
    named = [top for top in tops if side_of(top) and _is_pure(_SPLIT_WORD.sub("", top.lower()))]
    are_parts = "fold" in kinds and len({re.sub(r"\d+", "", top.lower()) for top in tops}) == 1
    if len(tops) > 1 and (len(named) == len(tops) or are_parts):
        return [LabelledFile(name, "", None) for name in names], depth
    if len(named) > 1:
        message = "they are read as classes, because there are images in other folders next to them."
        problems.note(f"the folders {listed(named)}", message)
    _report_inner_folders(inside, unit, problems)
    return [LabelledFile(name, _part(name, depth), None) for name in names], depth


def _by_split_words(names: Sequence[str]) -> dict[str, str]:
    """Return the files by names with folders for split and class, if theirs are train_cat, test_cat, …"""
    depth = _depth_of_root(names)
    indices: dict[str, tuple[str, str]] = {}
    for top in {_part(name, depth) for name in names} - {""}:
        spaced = _CAMEL_CASE.sub(" ", top)
        word = _SPLIT_WORD.search(spaced.lower())
        rest = spaced[: word.start()] + spaced[word.end() :] if word else ""
        indices[top] = side_of(top), rest.strip(" _-.")
    classes: dict[str, set[str]] = {}
    for side, rest in indices.values():
        classes.setdefault(side, set()).add(alike(rest))
    train = classes.get("train", set())
    is_usual = "" not in classes and all(len(some) > 1 and some <= train for some in classes.values())
    is_same = len(set(indices.values())) < len(indices)
    if len(classes) < 2 or not is_usual or is_same or any(map(_is_pure, train)):
        return {name: name for name in names}
    virtual = {}
    for name in names:
        parts = name.split("/")
        parts[depth : depth + 1] = indices.get(_part(name, depth), parts[depth : depth + 1])
        virtual["/".join(parts)] = name
    return virtual


def _is_pure(rest: str) -> bool:
    """Return True for the rest of a split's folder name that is no class: Set, _images, 2017."""
    return re.fullmatch(rf"({_SPLIT_NOUNS})?[\W\d_]*", rest.lower()) is not None


def by_file_names(names: Sequence[str]) -> dict[str, str]:
    """Return the files by names with a class folder, if their own names begin with a class: cat.17.jpg."""
    found = {name: _CLASS_IN_NAME.match(name.rpartition("/")[2]) for name in names}
    classes = {name: (one[1] or one[2]).lower() for name, one in found.items() if one}
    counts = Counter(classes.values())
    known = sum(count for label, count in counts.items() if label not in CAMERA_NAMES)
    is_usual = 2 <= len(counts) <= known / 5 and min(counts.values()) >= MIN_PER_CLASS
    if not is_usual or known < len(names) / 2 or CAMERA_NAMES & counts.keys():
        return {}
    virtual = {}
    for name in names:
        folder, _, own = name.rpartition("/")
        virtual[f"{folder}/{classes[name]}/{own}".lstrip("/") if name in classes else name] = name
    return virtual


def listed_files(source: ImageSource, labels: Listed, problems: Problems) -> list[LabelledFile]:
    """Return the images named in a table with their labels; they can be at any depth below the folder."""
    found = _find_files(source.files, labels)
    # Images for testing may have the names of those for training.
    train = [file for file in source.files if side_of(file.rpartition("/")[0].rpartition("/")[2]) == "train"]
    found |= _find_files(train, [name for name, file in found.items() if file is None])
    missing = [quoted(name) for name, file in found.items() if file is None]
    if missing:
        location = "the folder of the images"
        message = f"{len(missing):,} of {len(labels):,} images of the table are not there: {listed(missing)}."
        if len(missing) == len(labels):
            problems.fault(location, message, "Give the folder that contains them.")
        else:
            problems.note(location, message, "They are left out.")
    num_images = sum(name.lower().endswith(IMAGE_SUFFIXES) for name in source.files)
    if num_others := num_images - sum(file is not None for file in found.values()):
        message = f"{num_others:,} of {num_images:,} images are not in the table, or not used by it."
        problems.note("the folder of the images", message, "They are left out.")
    return [LabelledFile(file, *labels[name]) for name, file in found.items() if file is not None]


def _find_files(files: Sequence[str], names: Iterable[str]) -> dict[str, str | None]:
    """Return the only file that fits each name, or None.

    A name can be in other capitals, without the suffix, and with more or fewer folders in front.
    """
    own = set(files)
    found = {name: name if name in own else None for name in names}
    depth = 1 + max((file.count("/") for file in files), default=0)
    for num_folders in range(depth + 1):
        keys: dict[str, str | None] = {}
        for file in files:
            key = file.lower().split("/", num_folders)[-1]
            key = key.rpartition(".")[0] if num_folders == depth else key
            keys[key] = None if key in keys else file
        for name in [name for name, file in found.items() if file is None]:
            parts = name.lower().split("/")
            fitting = (keys.get("/".join(parts[index:])) for index in range(len(parts)))
            found[name] = next(filter(None, fitting), None)
    return found


def table_beside(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return a table that may have the labels of images, and their names; None for several folders.

    Parts such as images_01 are one folder; those for validation or testing, often unlabelled, do not count.
    """
    images = [PurePosixPath(name) for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    images = [image for image in images if side_of(image.parent.name) in ("", "train")]
    folders = {image.parent for image in images}
    tables = [PurePosixPath(name) for name in names if _LIST.search(name.lower())]
    tables.sort(key=lambda table: "train" not in table.name.lower())
    are_parts = all(any(map(_FOLD.fullmatch, str(folder).lower().split("/"))) for folder in folders)
    is_one = len(folders) == 1 or are_parts
    return (str(tables[0]), [image.name for image in images]) if tables and is_one else None


def sort_classes(names: Iterable[str]) -> list[str]:
    """Return names sorted by value if all are numbers, else alphabetically."""
    names = sorted(names)
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name, flags=re.ASCII) for name in names)
    return sorted(names, key=float) if are_numbers else names


def check_counts(
    counts: Mapping[str, int], unit: str, problems: Problems, suggested: Mapping[str, str] | None = None
) -> None:
    """Record a fault for a single class or classes of too few samples, and a note for small classes.

    Args:
        suggested: configuration fields that leave out the classes of too few samples.
    """
    if len(counts) == 1:
        message = f"there is one class only, {quoted(next(iter(counts)))}."
        problems.fault("the classes", message, "At least two are needed to tell apart.")
    total = sum(counts.values())
    lone = {name: count for name, count in counts.items() if count < MIN_PER_CLASS}
    suggested = suggested if len(lone) < len(counts) else None
    few = [f"{quoted(name)} ({n:,})" for name, n in counts.items() if MIN_PER_CLASS <= n < FEW_PER_CLASS]
    if lone:
        each = "the class has" if len(lone) == 1 else f"{len(lone):,} of {len(counts):,} classes have"
        names = f": {listed([quoted(name) for name in lone])}" if len(lone) > 1 else ""
        hint = f"Each class needs at least two {unit}, one for validation. Add {unit}, or leave it out."
        num = sum(lone.values())
        action = f"Leave out {len(lone):,} of {len(counts):,} classes ({num:,} of {total:,} {unit})"
        location = next(iter(lone)) if len(lone) == 1 else "the classes"
        message = f"{each} {max(lone.values())} {unit.removesuffix('s')}{names}."
        problems.fault(location, message, hint, suggested=suggested, action=action if suggested else "")
    largest = max(counts, key=lambda name: counts[name], default="")
    if len(counts) > 1 and counts[largest] >= DOMINANT * total:
        message = f"{counts[largest] / total:.0%} of the {unit} are of the class {quoted(largest)}"
        problems.note("the classes", f"{message}: always answering it has that accuracy.")
    if few and len(counts) > 5 and 5 * len(counts) > total:
        message = f"there are {len(counts):,} classes in {total:,} {unit}, more than one per five."
        problems.note("the classes", message, "Is each class meant to be one?")
    elif few:
        message = f"these classes have few {unit}: {listed(few)}."
        problems.note("the classes", message, "Little can be learned from so few.")


def alike(name: str) -> str:
    """Return a normalised name, equal for names that differ only in case, spaces or invisible characters."""
    plain = unicodedata.normalize("NFKC", name)
    visible = "".join(x for x in plain if unicodedata.category(x) != "Cf" and x not in VARIATIONS)
    return " ".join(visible.casefold().split())


def _images_of(source: ImageSource, problems: Problems) -> list[str]:
    suffixes = {name: PurePosixPath(name).suffix.lower() for name in source.files}
    images = [
        name
        for name, suffix in suffixes.items()
        if suffix in IMAGE_SUFFIXES or (suffix not in (".txt", ".md") and is_image(source, name))
    ]
    kept = set(images)
    others = [name for name in source.files if name not in kept]
    boxes = next(filter(_BOXES.search, others), None)
    keys = {name: _NOT_OF_NAME.sub("", name) for name in images}
    plain = {key for name, key in keys.items() if not _MASK.search(name)}
    if masks := {name for name, key in keys.items() if key in plain and _MASK.search(name)}:
        message = f"{len(masks):,} are masks of others, for another task, such as {quoted(min(masks))}."
        problems.note("the images", message, "They are left out.")
        images = [name for name in images if name not in masks]
    shown = listed([quoted(name) for name in others], 3)
    if not images:
        hint = f"Images end in {', '.join(IMAGE_SUFFIXES)}. {PER_CLASS_HINT.format(unit='images')}"
        inside = {**NOT_TAKEN, ".zip": "Unpack what is in it.", ".gz": "Unpack what is in it."}
        hint = next((inside[suffix] for suffix in suffixes.values() if suffix in inside), hint)
        there = f", but {shown}" if others else ""
        problems.fault("the data", f"there is no image in it{there}.", hint)
    elif others:
        tables = [quoted(name) for name in others if _LIST.search(name.lower())]
        hint = f"If {tables[0]} contains the labels of the images, give its path." if tables else ""
        if boxes:
            hint = f"{quoted(boxes)} may be for object detection; only classes of whole images are learned."
        problems.note("the data", f"{len(others):,} files are no images and are left out: {shown}.", hint)
    return images


def _depth_of_root(images: Sequence[str]) -> int:
    """Return the depth of the folder that contains the classes, skipping folders with a single child."""
    depth = 0
    while len({_part(name, depth) for name in images}) == 1 and any(
        _part(name, depth + 1) for name in images
    ):
        depth += 1
    return depth


def side_of(folder: str) -> str:
    """Return "train", a validation word or "" for a folder name such as seg_train, testData or val2017."""
    plain = "".join(x for x in unicodedata.normalize("NFD", folder) if not unicodedata.combining(x))
    words = _SPLIT_WORD.findall(_CAMEL_CASE.sub(" ", plain).lower())
    found = [word for word, _ in words]
    if any(word in TRAIN_WORDS for word in found):
        return "train"
    return min(found, key=VALIDATION_WORDS.index, default="")


def _split_of(tops: Iterable[str], images: Sequence[str], depth: int) -> tuple[list[str], str] | None:
    """Return the folders for training and the one for validation, or None if one is missing.

    Classes may be named train_station and test_tube. So folders that contain images directly count as splits
    only if their names are equal apart from the split word, and there is no other folder, such as plane.
    """
    sides = {top: side_of(top) for top in tops}
    train = [top for top, side in sides.items() if side == "train"]
    held = [top for top, side in sides.items() if side not in ("", "train")]
    held.sort(key=lambda top: VALIDATION_WORDS.index(sides[top]))
    if not train or not held:
        return None
    inside = _inside(images, depth)
    classes = [inside.get(top, set()) - {""} for top in train]
    if len(train) > 1 or any(classes):
        return (train, held[0]) if len(train) == 1 or len(set.intersection(*classes)) > 1 else None
    rests = {_SPLIT_WORD.sub("", top.lower()) for top in (train[0], held[0])}
    others = [top for top in inside if not sides.get(top, "others") and not _is_no_class(top)]
    return (train, held[0]) if (all(map(_is_pure, rests)) or len(rests) == 1) and not others else None


def _inside(images: Sequence[str], depth: int, below: int = 1) -> dict[str, set[str]]:
    """Return the folder names in each top folder; "" if images are directly in it."""
    found: dict[str, set[str]] = {}
    for name in images:
        found.setdefault(_part(name, depth), set()).add(_part(name, depth + below))
    return found


def _is_no_class(folder: str) -> bool:
    return bool(re.fullmatch(f"{_IMAGES}|{_MASKS}", folder, re.I)) or alike(folder) in UNLABELLED


def _report_inner_folders(inside: Mapping[str, set[str]], unit: str, problems: Problems) -> None:
    """Report subfolders that are the same in each class and could be the classes themselves."""
    common = set.intersection(*inside.values()) - {""}
    some = set.union(*inside.values())
    are_groups = "" not in some and any(len(each) > 1 for each in inside.values())
    names = sorted(common if len(common) > 1 else some if are_groups else ())
    if len(inside) > 1 and names:
        message = f"the folders in them are not used: {listed([quoted(name) for name in names])}"
        message += " are in each." if len(common) > 1 else "."
        hint = f"If those are the classes, put all {unit} of one into one folder."
        problems.note(f"the classes {listed(sorted(inside), 3)}", message, hint)


def _with_given_splits(
    images: Sequence[str], depth: int, folders: tuple[list[str], str], unit: str, problems: Problems
) -> tuple[list[LabelledFile], int]:
    """Return the labelled images of both folders, and the depth of the class folders."""
    trains, validation = folders
    train = " with ".join(trains)
    sides = f"{train} is for training, {validation} for validation"
    labelled: list[LabelledFile] = []
    class_depth = depth + 1
    for folder in (*trains, validation):
        own = [name for name in images if _part(name, depth) == folder]
        # The folder is often nested in another one of the same name.
        deeper = depth + 1 + _depth_of_root([name.split("/", depth + 1)[-1] for name in own])
        labelled += [LabelledFile(name, _part(name, deeper), folder == validation) for name in own]
        class_depth = class_depth if folder == validation else deeper
    held = [alike(label) for _, label, is_held in labelled if is_held]
    trained = {alike(label) for _, label, is_held in labelled if not is_held} - {""}
    # All images of a test may be in one folder, such as test/unknown.
    is_unknown = len(trained) > 1 and len(set(held)) == 1 and held[0] not in trained
    if trained and (is_unknown or not any(held)):
        message = f"its {len(held):,} {unit} have no class folder of {train}: they are not used."
        problems.note(validation, message, f"A part of {train} is kept for validation.")
        labelled = [file._replace(is_validation=None) for file in labelled if not file.is_validation]
    else:
        problems.note("the data", f"{sides}, as the folders say.")
    unused = Counter(_part(name, depth) for name in images)
    for folder in sorted(unused.keys() - {*trains, validation, ""}):
        problems.note(folder, f"its {unused[folder]:,} {unit} are not used: {sides}.")
    loose = [LabelledFile(name, "", None) for name in images if not _part(name, depth)]
    return labelled + loose, class_depth


def _checked(
    labelled: list[LabelledFile], reading: Mapping[str, Any], problems: Problems
) -> list[LabelledFile]:
    """Return the images whose classes can be used; report problems of the classes."""
    labelled = joined(labelled, problems, is_joined=bool(reading.get("join_labels")))
    is_given = any(held is not None for *_, held in labelled)
    if is_given:
        labelled = _checked_splits(labelled, problems, is_reduced=bool(reading.get("leave_out_rare")))
    counts = Counter(label for _, label, _ in labelled)
    if not is_given and reading.get("leave_out_rare"):
        counts = Counter({label: count for label, count in counts.items() if count >= MIN_PER_CLASS})
        num = len(labelled) - counts.total()
        problems.note("the classes", f"{num:,} images of classes with a single one are left out.")
    names = sort_classes(counts)
    odd = [quoted(name) for name in names if _is_no_class(name)]
    if 0 < len(odd) < len(names):
        problems.note("the classes", f"{listed(odd)} may be of another task; it is read as a class.")
    elif len(odd) > 1:
        message = f"{listed(odd)} are folders of another task."
        problems.fault("the classes", message, "Only classes of whole images can be learned here.")
    # If folders determine the splits, a class may have a single image.
    is_some_left = max(counts.values(), default=0) >= MIN_PER_CLASS
    suggested = {"data_reading": '{"leave_out_rare": true}'} if is_some_left else None
    if len(names) == 1 or not is_given:
        ordered = {name: counts[name] for name in names}
        check_counts(ordered if not is_given else {names[0]: FEW_PER_CLASS}, "images", problems, suggested)
    return [file for file in labelled if file.label in counts]


def joined(labelled: list[LabelledFile], problems: Problems, *, is_joined: bool) -> list[LabelledFile]:
    """Join classes with alike names if the user chose that, or if one of them is in validation only."""
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
    return [file._replace(label=first[file.label]) for file in labelled]


def _checked_splits(
    labelled: list[LabelledFile], problems: Problems, *, is_reduced: bool
) -> list[LabelledFile]:
    """Report classes that are in one split only; those only in validation cannot be used."""
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
    hint = "Add images for training, or leave these classes out."
    suggested = {"data_reading": '{"leave_out_rare": true}'} if is_some_left else None
    action = f"Leave out {of} ({num:,} of {len(labelled):,} images)" if is_some_left else ""
    problems.fault("the classes", message, hint, suggested=suggested, action=action)
    return labelled


def _part(name: str, depth: int) -> str:
    """Return a file's folder at some depth, or "" if the file is not that deep."""
    parts = name.split("/", depth + 1)
    return parts[depth] if len(parts) > depth + 1 else ""


NUM_DECODED_IN_INSPECTION = 2_000
NUM_MEASURED = 1_000  # images from which value range, mean and deviation are computed
NUM_THUMBNAILS = 12
THUMBNAIL_SIDE = 32
LEAST_KEPT = 0.5  # of an image; one that is cropped to less is reported
# Tables of images with their labels
_LIST = re.compile(r"\.(?:csv|tsv|xlsx|parquet|jsonl)$|(?:label|train|list|annot)[^/]*\.txt$")


@dataclass(frozen=True, kw_only=True)
class ImageInspection:
    """The result of inspecting the images at a path.

    Attributes:
        class_names: of all images, also of those that cannot be read.
        num_images: number of all images, also of those without a class.
        num_labelled: number of images with a class.
        files: those of them that are used, with readable headers.
        shape: shape of each prepared image.
        decoded: pixels of the images that were decoded for the inspection, by name.
        value_range: see `image_files.Range`.
    """

    source: ImageSource
    class_names: tuple[str, ...]
    num_images: int
    num_labelled: int
    files: Sequence[LabelledFile]
    shape: Shape
    decoded: Mapping[str, Pixels]
    value_range: Range

    def split(self, files: Sequence[LabelledFile]) -> tuple[Rows, Rows, Rows]:
        """Return class numbers, and the rows of training and validation: by folders, else 80% and 20%."""
        numbers = self.numbers()
        labels = np.array([numbers[file.label] for file in files], dtype=np.int64)
        if not files or files[0].is_validation is None:
            return labels, *split_rows(labels, len(files))
        is_validation = np.array([bool(file.is_validation) for file in files])
        return labels, np.flatnonzero(~is_validation), np.flatnonzero(is_validation)

    def numbers(self) -> dict[str, int]:
        """Return the number of each class."""
        return {name: number for number, name in enumerate(self.class_names)}

    def class_counts(self, files: Sequence[LabelledFile]) -> dict[str, int]:
        """Return the number of images of each class."""
        counts = Counter(file.label for file in files)
        return {name: counts[name] for name in self.class_names}


class Images:
    """Images in class folders at a path, or images with `labels` from a table."""

    name = "images"

    def __init__(self, path: Path, options: DataOptions, labels: Listed | None = None) -> None:
        self._path = path
        self._options = options
        self._labels = labels
        self._reading = parse_reading(options.reading)

    def options(self) -> dict[str, object]:
        """Return the options that determine the prepared data."""
        info: dict[str, object] = {
            "kind": self.name,
            "skip_unreadable": self._options.skip_unreadable,
            "reading": self._options.reading,
        }
        if self._labels is not None:
            info |= {"images": fingerprint(self._path, {}), "label": self._options.label_column}
        return info

    def inspect(self, problems: Problems) -> ImageInspection:
        """Read all folders and headers; decode at most 2,000 evenly spaced images."""
        source = source_of(self._path, problems, str(self._reading.get("encoding", "")))
        labelled: list[LabelledFile] = []
        num_images = 0
        if not problems.num_faults:
            labelled, num_images = self._labelled(source, problems)
            labelled = _checked(labelled, self._reading, problems) if labelled else []
        headers = self._read_headers(source, labelled, problems)
        files = [file for file in labelled if file.name in headers]
        shape = image_files.choose_shape(list(headers.values())) if headers else (1, 1, 1)
        _report_cropped(headers, shape, problems)
        value_range = self._range_of(source, headers, problems)
        sample = [file.name for file in files[:: -(-len(files) // NUM_DECODED_IN_INSPECTION) or 1]]
        decoded: dict[str, Pixels] = {}
        failures: dict[str, str] = {}
        progress = ReadProgress("images tried", len(sample))
        for names, pixels, failed in image_files.decode_all(source, sample, shape, value_range):
            progress.add(len(names) + len(failed))
            decoded.update(zip(names, pixels.copy(), strict=True))
            failures |= failed
        self._report_unreadable(failures, len(labelled), problems)
        files = [file for file in files if file.name not in failures]
        return ImageInspection(
            source=source,
            class_names=tuple(sort_classes({file.label for file in labelled})),
            num_images=num_images,
            num_labelled=len(labelled),
            files=self._without_copies(files, decoded, problems),
            shape=shape,
            decoded=decoded,
            value_range=value_range,
        )

    def about(self, inspection: ImageInspection) -> dict[str, Any]:
        """Return the classes with their counts and some thumbnails."""
        preview = {
            "class_counts": inspection.class_counts(inspection.files),
            "thumbnails": _thumbnails(inspection),
            "shape": list(inspection.shape),
            "num_images": inspection.num_images,
        }
        return {"task": IMAGE_CLASSIFICATION, "columns": [], "label_column": None, "preview": preview}

    def estimate(self, inspection: ImageInspection) -> DataSpec:
        """Describe the images, assuming that all images with readable headers can be decoded."""
        _, train, validation = inspection.split(inspection.files)
        return self._spec(inspection.class_names, inspection.shape, len(train), len(validation))

    def prepare(self, inspection: ImageInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Decode all images into one array.

        Raises:
            DataError: if there are unreadable images that may not be left out.
        """
        shape = inspection.shape
        require_space(folder, len(inspection.files) * int(np.prod(shape)))
        writer = ArrayWriter(folder, "images", "|u1", shape)
        failures: dict[str, str] = {}
        progress = ReadProgress("images decoded", len(inspection.files))
        requested = [file.name for file in inspection.files]
        for decoded, pixels, failed in image_files.decode_all(
            inspection.source, requested, shape, inspection.value_range, inspection.decoded
        ):
            progress.add(len(decoded) + len(failed))
            writer.append(pixels)
            failures |= failed
        self._report_unreadable(failures, len(requested), problems)
        kept = [file for file in inspection.files if file.name not in failures]
        labels, train, validation = inspection.split(kept)
        if len(kept) < inspection.num_labelled:
            check_counts(inspection.class_counts(kept), "usable images", problems)
        if not problems.num_faults and not (len(train) and len(validation)):
            side = "validation" if len(train) else "training"
            message = f"no readable image is left for {side}."
            problems.fault("the data", message, "Replace the unreadable ones.")
        problems.check(str(self._path))
        arrays = write_arrays(folder, labels=labels, train=train, validation=validation)
        arrays["images"] = writer.close()
        images = MappedArray.of(folder, "images", arrays)
        measured = images.take(np.sort(train)[:: -(-len(train) // NUM_MEASURED)])
        return {
            "arrays": arrays,
            "class_names": list(inspection.class_names),
            "shape": list(shape),
            "mean": measured.mean(axis=(0, 2, 3)).tolist(),
            "std": np.maximum(measured.std(axis=(0, 2, 3), dtype=np.float32), 1.0).tolist(),
        }

    def spec(self, prepared: PreparedData) -> DataSpec:
        """Describe the prepared images."""
        channels, height, width = prepared.meta["shape"]
        sizes = [len(prepared.array(side)) for side in ("train", "validation")]
        return self._spec(tuple(prepared.meta["class_names"]), (channels, height, width), *sizes)

    def splits(self, prepared: PreparedData, device: torch.device) -> tuple[Split, Split]:
        """Return training and validation images, normalised with statistics of the training images."""
        meta, channels = prepared.meta, prepared.meta["shape"][0]
        mean = meta["mean"] if self._options.normalise else [0.0] * channels
        std = meta["std"] if self._options.normalise else [255.0] * channels
        images, labels = prepared.array("images"), prepared.array("labels").all()
        found: list[Split] = []
        for rows in (prepared.array("train").all(), prepared.array("validation").all()):
            if images.num_bytes <= cache.SMALL_BYTES or device.type != "cpu":
                pixels, targets = whole(images, rows, device), torch.from_numpy(labels[rows])
                found.append(ImageSplit(pixels, targets, mean=mean, std=std, device=device))
            else:
                found.append(MappedImageSplit(images, labels, rows, mean=mean, std=std))
        return found[0], found[1]

    def _labelled(self, source: ImageSource, problems: Problems) -> tuple[list[LabelledFile], int]:
        """Return the images with a class by the table or the folder names, and the number of all images."""
        if self._labels is not None:
            labelled = listed_files(source, self._labels, problems)
            return labelled, len(labelled)
        images = _images_of(source, problems)
        skip = self._options.skip_unreadable
        labelled = labelled_files(source, images, "images", skip=skip, problems=problems) if images else []
        return labelled, len(images)

    def _read_headers(
        self, source: ImageSource, files: Sequence[LabelledFile], problems: Problems
    ) -> dict[str, ImageHeader]:
        headers: dict[str, ImageHeader] = {}
        failures: dict[str, str] = {}
        names = [file.name for file in files]
        progress = ReadProgress("image headers read", len(names))
        for name, answer in zip(names, image_files.read_headers(source, names), strict=True):
            progress.add(1)
            if isinstance(answer, ImageHeader):
                headers[name] = answer
            else:
                failures[name] = answer
        self._report_unreadable(failures, len(names), problems)
        if animated := [name for name, header in headers.items() if header.has_frames]:
            message = f"{len(animated):,} images have several frames or pages, such as {animated[0]}: "
            problems.note("the images", message + "the first is used.")
        return headers

    def _report_unreadable(self, failures: Mapping[str, str], total: int, problems: Problems) -> None:
        """Report unreadable images, once per reason."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in failures.items():
            by_reason.setdefault(re.sub(r"\d+|'[^']*'", "", reason), []).append(name)
        for names in by_reason.values():
            reason, num = failures[names[0]], len(names)
            location = names[0] if num == 1 else "the images"
            all_of_them = f"all {num:,}" if num == total else f"{num:,} of {total:,}"
            message = f"{reason}." if num == 1 else f"{all_of_them}: {reason}, such as {listed(names, 3)}."
            if num == total:
                problems.fault(location, message, "Replace them.")
            else:
                skip = self._options.skip_unreadable
                problems.unreadable(location, message, "Replace or delete it.", skip=skip, num_samples=num)

    def _range_of(self, source: ImageSource, headers: Mapping[str, ImageHeader], problems: Problems) -> Range:
        deep = [name for name, header in headers.items() if header.is_deep]
        if not deep:
            return image_files.FULL_RANGE
        low, high = found = image_files.range_of(source, deep[:: -(-len(deep) // NUM_MEASURED)])
        if found != image_files.FULL_RANGE:
            bits = int(high).bit_length() if low == 0 and high > 1 else 0
            used = f"{bits} bits" if bits else f"values from {low:g} to {high:g}"
            message = f"{len(deep):,} have room for 16 bits or more and use {used}: they are scaled by that."
            problems.note("the images", message)
        return found

    def _without_copies(
        self,
        files: Sequence[LabelledFile],
        decoded: Mapping[str, Pixels],
        problems: Problems,
    ) -> list[LabelledFile]:
        """Report duplicate images; return the files, without duplicates if the user chose that."""
        groups: dict[bytes, list[LabelledFile]] = {}
        for file in files:
            if file.name in decoded:
                pixels = decoded[file.name].tobytes()
                groups.setdefault(hashlib.blake2b(pixels, digest_size=16).digest(), []).append(file)
        if len(groups) == 1 and len(files) > 2:
            hint = "Look at them in an image viewer: they may be damaged, or need another program."
            problems.fault("the images", "all of them look the same: there is nothing to learn from.", hint)
        alike = [group for group in groups.values() if len(group) > 1]
        if problems.num_faults or not alike:
            return list(files)
        # Of copies in the same class one is kept; of those in several classes none, as no label is certain.
        torn = [group for group in alike if len({file.label for file in group}) > 1]
        copies = [file for group in alike if group not in torn for file in group[1:]]
        gone = {file.name for group in torn for file in group} | {file.name for file in copies}
        if self._reading.get("leave_out_copies"):
            problems.note("the images", f"{len(gone):,} images are left out: copies, or in several classes.")
            return [file for file in files if file.name not in gone]
        message = _copies_message(torn, copies, alike, files)
        if len(decoded) < len(files):
            message += f" Only {len(decoded):,} images were compared."
        suggested = {"data_reading": '{"leave_out_copies": true}'}
        action = f"Leave out {len(gone):,} image{'s' * (len(gone) > 1)} ({len(gone) / len(files):.0%})"
        problems.note("the images", message, suggested=suggested, action=action)
        return list(files)

    def _spec(self, names: tuple[str, ...], shape: Shape, num_train: int, num_validation: int) -> DataSpec:
        colours = "grey" if shape[0] == 1 else "in colour"
        return DataSpec(
            task=IMAGE_CLASSIFICATION,
            input_shape=shape,
            num_classes=len(names),
            class_names=names,
            num_train=num_train,
            num_validation=num_validation,
            sample_unit="images",
            description=f"Your own images of {len(names)} classes, brought to {shape[2]} × {shape[1]} "
            f"pixels, {colours}; {num_train:,} to train, {num_validation:,} to validate.",
            source=f"your own data, {self._path}",
            watched_paths=(self._path,),
            num_bytes=num_train * int(np.prod(shape)),
        )


def _report_cropped(headers: Mapping[str, ImageHeader], shape: Shape, problems: Problems) -> None:
    """Report images of which the middle is used, because their shape is very different."""
    wide = shape[2] / shape[1]
    ratios = {name: header.width / header.height / wide for name, header in headers.items()}
    if cropped := [name for name, ratio in ratios.items() if min(ratio, 1 / ratio) < LEAST_KEPT]:
        message = f"{len(cropped):,} of {len(headers):,} are cropped to less than half: {listed(cropped, 3)}."
        problems.note("the images", message, "If the rest matters, cut them into pieces.")


def _copies_message(
    ambiguous: Sequence[Sequence[LabelledFile]],
    copies: Sequence[LabelledFile],
    alike: Sequence[Sequence[LabelledFile]],
    files: Sequence[LabelledFile],
) -> str:
    sentences = []
    if ambiguous:
        shown = listed([" = ".join(file.name for file in group[:2]) for group in ambiguous], 3)
        num = sum(map(len, ambiguous))
        sentences.append(f"{num:,} images are in several classes, so one of their labels is wrong: {shown}.")
    if leaked := [group[-1] for group in alike if len({file.is_validation for file in group}) > 1]:
        num_held = sum(file.is_validation is True for file in files)
        shown = listed([file.name for file in leaked], 3)
        sentences.append(f"{len(leaked):,} of {num_held:,} validation images are also in training: {shown}.")
    elif copies:
        shown = listed([file.name for file in copies], 3)
        sentences.append(f"{len(copies):,} images are copies of others: {shown}.")
        if files[0].is_validation is None:
            sentences.append("Some would be in training and in validation.")
    return " ".join(sentences)


def _thumbnails(inspection: ImageInspection) -> list[dict[str, Any]]:
    """Return twelve thumbnails, from as many classes as possible."""
    channels, height, width = inspection.shape
    factor = min(1.0, THUMBNAIL_SIDE / max(height, width))
    shape = (channels, max(1, round(height * factor)), max(1, round(width * factor)))
    nth: Counter[str] = Counter()
    order, numbers = [], inspection.numbers()
    for file in inspection.files:
        order.append((nth[file.label], numbers[file.label], file.name))
        nth[file.label] += 1
    found = []
    for _, number, name in sorted(order)[:NUM_THUMBNAILS]:
        try:
            pixels = image_files.decode(inspection.source, name, shape, inspection.value_range)
        except UnreadableImageError:
            continue  # preparing reports it
        encoded = base64.b64encode(pixels.transpose(1, 2, 0).tobytes()).decode("ascii")
        info: dict[str, Any] = dict(zip(("channels", "height", "width"), shape, strict=True))
        info |= {"class": inspection.class_names[number], "name": name.rpartition("/")[2], "pixels": encoded}
        found.append(info)
    return sorted(found, key=lambda item: str(item["class"]))
