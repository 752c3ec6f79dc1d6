"""A folder or zip of images in class folders, decoded once to one size."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.contract.config.data import parse_reading
from trainers.data.dataset import IMAGE_CLASSIFICATION, DataOptions, DataSpec, ImageSplit, Split
from trainers.data.own.common.cache import fingerprint, require_space
from trainers.data.own.common.limits import Progress
from trainers.data.own.common.problems import Problems, listed
from trainers.data.own.common.splits import MappedImageSplit, Rows, split_rows, whole
from trainers.data.own.common.store import SMALL_BYTES, ArrayWriter, MappedArray, Prepared, write_array
from trainers.data.own.images import classes, decoding
from trainers.data.own.images.classes import Arrangement, LabelledFile
from trainers.data.own.images.decoding import Header, Pixels, Range, Shape, UnreadableImageError
from trainers.data.own.images.sources import FolderSource, ImageSource, ZipSource

NUM_DECODED_IN_INSPECTION = 2_000
NUM_MEASURED = 1_000  # images whose values are examined for the range in use, and the mean and deviation
NUM_THUMBNAILS = 12
THUMBNAIL_SIDE = 32
LISTS = (".csv", ".tsv", ".xlsx", ".parquet")  # of images with their labels


@dataclass(frozen=True, kw_only=True)
class ImageInspection:
    """The images at a path.

    Attributes:
        files: the images whose headers can be read.
        shape: of every prepared image.
        decoded: the pixels of those of `files` that were decoded for the inspection, by name.
        value_range: see `decoding.Range`.
    """

    source: ImageSource
    arrangement: Arrangement
    files: Sequence[LabelledFile]
    shape: Shape
    decoded: Mapping[str, Pixels]
    value_range: Range


class Images:
    """Images in class folders at a path, or the images that a table names with their `labels`."""

    name = "images"

    def __init__(self, path: Path, options: DataOptions, labels: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._options = options
        self._labels = labels
        self._reading = parse_reading(options.reading)

    def options(self) -> dict[str, object]:
        """Return the options that determine the prepared data."""
        about: dict[str, object] = {
            "kind": self.name,
            "skip_unreadable": self._options.skip_unreadable,
            "reading": self._options.reading,
        }
        if self._labels is not None:
            about |= {"images": fingerprint(self._path, {}), "label": self._options.label_column}
        return about

    def inspect(self, problems: Problems) -> ImageInspection:
        """Read the folders and every header; decode all images, or 2,000 evenly spread ones."""
        encoding = str(self._reading.get("encoding", ""))
        is_folder = self._path.is_dir()
        source = (
            FolderSource(self._path, problems) if is_folder else ZipSource(self._path, problems, encoding)
        )
        arrangement = Arrangement()
        if not problems.num_faults and not (
            is_folder and self._labels is None and self._is_list(source, problems)
        ):
            arrangement = self._arrange(source, problems)
        headers = self._read_headers(source, arrangement.files, problems)
        files = [file for file in arrangement.files if file.name in headers]
        shape = decoding.choose_shape(list(headers.values())) if headers else (1, 1, 1)
        value_range = self._range_of(source, headers, problems)
        sample = [file.name for file in files[:: -(-len(files) // NUM_DECODED_IN_INSPECTION) or 1]]
        decoded: dict[str, Pixels] = {}
        failures: dict[str, str] = {}
        progress = Progress("images tried", len(sample))
        for piece in decoding.decode_all(source, sample, shape, value_range):
            progress.add(len(piece.names) + len(piece.failures))
            decoded.update(zip(piece.names, piece.pixels.copy(), strict=True))
            failures |= piece.failures
        self._report_unreadable(failures, len(arrangement.files), problems)
        files = [file for file in files if file.name not in failures]
        return ImageInspection(
            source=source,
            arrangement=arrangement,
            files=self._without_copies(files, decoded, problems),
            shape=shape,
            decoded=decoded,
            value_range=value_range,
        )

    def about(self, inspection: ImageInspection) -> dict[str, Any]:
        """Return the classes with their counts and some thumbnails."""
        left = replace(inspection.arrangement, files=tuple(inspection.files))
        preview = {
            "class_counts": left.class_counts(),
            "thumbnails": _thumbnails(inspection),
            "shape": list(inspection.shape),
            "num_images": inspection.arrangement.num_images,
        }
        return {"task": IMAGE_CLASSIFICATION, "columns": [], "label_column": None, "preview": preview}

    def estimate(self, inspection: ImageInspection) -> DataSpec:
        """Describe the images as if all whose headers can be read could be decoded."""
        sizes = [len(rows) for rows in _split(inspection.files)]
        return self._spec(inspection.arrangement.class_names, inspection.shape, *sizes)

    def prepare(self, inspection: ImageInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Decode all images into one array.

        Raises:
            DataError: when there are unreadable images that may not be left out.
        """
        shape, names = inspection.shape, inspection.arrangement.class_names
        require_space(folder, len(inspection.files) * int(np.prod(shape)))
        writer = ArrayWriter(folder, "images", "|u1", shape)
        failures: dict[str, str] = {}
        progress = Progress("images decoded", len(inspection.files))
        wanted = [file.name for file in inspection.files]
        for piece in decoding.decode_all(
            inspection.source, wanted, shape, inspection.value_range, inspection.decoded
        ):
            progress.add(len(piece.names) + len(piece.failures))
            writer.append(piece.pixels)
            failures |= piece.failures
        progress.finish()
        self._report_unreadable(failures, len(wanted), problems)
        kept = tuple(file for file in inspection.files if file.name not in failures)
        train, validation = _split(kept)
        if len(kept) < len(inspection.arrangement.files):
            left = Arrangement(class_names=names, files=kept).class_counts()
            classes.check_counts(left, "usable images", problems)
        if not problems.num_faults and not (len(train) and len(validation)):
            side = "validation" if len(train) else "training"
            problems.fault(
                "the data", f"no readable image is left for {side}.", "Replace the unreadable ones."
            )
        problems.check(str(self._path))
        labels = np.array([file.label for file in kept], dtype=np.int64)
        arrays = {"labels": labels, "train": train, "validation": validation}
        about = {
            "images": writer.close(),
            **{name: write_array(folder, name, values) for name, values in arrays.items()},
        }
        images = MappedArray(folder / "images.bin", "|u1", (len(kept), *shape))
        measured = images.take(np.sort(train)[:: -(-len(train) // NUM_MEASURED)])
        return {
            "arrays": about,
            "class_names": list(names),
            "shape": list(shape),
            "mean": measured.mean(axis=(0, 2, 3)).tolist(),
            "std": np.maximum(measured.std(axis=(0, 2, 3), dtype=np.float32), 1.0).tolist(),
        }

    def spec(self, prepared: Prepared) -> DataSpec:
        """Describe the prepared images."""
        channels, height, width = prepared.meta["shape"]
        sizes = [len(prepared.array(side)) for side in ("train", "validation")]
        return self._spec(tuple(prepared.meta["class_names"]), (channels, height, width), *sizes)

    def splits(self, prepared: Prepared, device: torch.device) -> tuple[Split, Split]:
        """Return training and validation images; the mean and deviation are of the training images."""
        meta, channels = prepared.meta, prepared.meta["shape"][0]
        mean = meta["mean"] if self._options.normalise else [0.0] * channels
        std = meta["std"] if self._options.normalise else [255.0] * channels
        images, labels = prepared.array("images"), prepared.array("labels").all()
        found: list[Split] = []
        for rows in (prepared.array("train").all(), prepared.array("validation").all()):
            if images.num_bytes <= SMALL_BYTES or device.type != "cpu":
                pixels, targets = whole(images, rows, device), torch.from_numpy(labels[rows])
                found.append(ImageSplit(pixels, targets, mean=mean, std=std, device=device))
            else:
                found.append(MappedImageSplit(images, labels, rows, mean=mean, std=std))
        return found[0], found[1]

    def _arrange(self, source: ImageSource, problems: Problems) -> Arrangement:
        if self._labels is not None:
            return classes.arrange_listed(source, self._labels, self._reading, problems)
        return classes.arrange(source, self._reading, skip=self._options.skip_unreadable, problems=problems)

    def _is_list(self, source: ImageSource, problems: Problems) -> bool:
        """Return True if a table names the labels of images that are in one folder, after reporting it."""
        images = [name for name in source.files if name.lower().endswith(classes.IMAGE_SUFFIXES)]
        folders = {name.rpartition("/")[0] for name in images}
        lists = [name for name in source.files if name.lower().endswith(LISTS) and name.count("/") < 2]
        if len(folders) != 1 or not lists:
            return False
        folder = self._path / folders.pop()
        suggested = {"data_path": str(self._path / lists[0]), "images_path": str(folder)}
        problems.fault(
            "the data",
            f"its {len(images):,} images are in one folder, next to the table {lists[0]}.",
            "If the table contains their file names and labels, give its path and the folder of the images.",
            suggested=suggested,
            action=f"Read the labels from {lists[0]}",
        )
        return True

    def _read_headers(
        self, source: ImageSource, files: Sequence[LabelledFile], problems: Problems
    ) -> dict[str, Header]:
        headers: dict[str, Header] = {}
        failures: dict[str, str] = {}
        names = [file.name for file in files]
        progress = Progress("image headers read", len(names))
        for name, answer in zip(names, decoding.read_headers(source, names), strict=True):
            progress.add(1)
            if isinstance(answer, Header):
                headers[name] = answer
            else:
                failures[name] = answer
        progress.finish()
        self._report_unreadable(failures, len(names), problems)
        if animated := [name for name, header in headers.items() if header.has_frames]:
            message = f"{len(animated):,} images have several frames or pages, such as {animated[0]}: "
            problems.note("the images", message + "the first is used.")
        return headers

    def _report_unreadable(self, failures: Mapping[str, str], total: int, problems: Problems) -> None:
        """Report images that cannot be read, once for each reason."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in failures.items():
            by_reason.setdefault(re.sub(r"\d+|'[^']*'", "", reason), []).append(name)
        for names in by_reason.values():
            reason, num = failures[names[0]], len(names)
            where = names[0] if num == 1 else "the images"
            all_of_them = f"all {num:,}" if num == total else f"{num:,} of {total:,}"
            message = f"{reason}." if num == 1 else f"{all_of_them}: {reason}, such as {listed(names, 3)}."
            if num == total:
                problems.fault(where, message, "Replace them.")
            else:
                skip = self._options.skip_unreadable
                problems.unreadable(where, message, "Replace or delete it.", skip=skip, num_samples=num)

    def _range_of(self, source: ImageSource, headers: Mapping[str, Header], problems: Problems) -> Range:
        deep = [name for name, header in headers.items() if header.is_deep]
        if not deep:
            return decoding.FULL_RANGE
        low, high = found = decoding.range_of(source, deep[:: -(-len(deep) // NUM_MEASURED)])
        if found != decoding.FULL_RANGE:
            used = (
                f"{int(high).bit_length()} bits"
                if low == 0 and high > 1
                else f"values from {low:g} to {high:g}"
            )
            message = f"{len(deep):,} have room for 16 bits or more and use {used}: they are scaled by that."
            problems.note("the images", message)
        return found

    def _without_copies(
        self,
        files: Sequence[LabelledFile],
        decoded: Mapping[str, Pixels],
        problems: Problems,
    ) -> list[LabelledFile]:
        """Report equal images; return the files without them if that is wanted."""
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
        # No label is certain for an image in several classes; one of the other copies is kept.
        torn = [group for group in alike if len({file.label for file in group}) > 1]
        copies = [file for group in alike if group not in torn for file in group[1:]]
        gone = {file.name for group in torn for file in group} | {file.name for file in copies}
        if self._reading.get("leave_out_copies"):
            problems.note("the images", f"{len(gone):,} images are left out: copies, or in several classes.")
            return [file for file in files if file.name not in gone]
        message = _copies_in_words(torn, copies, alike, files)
        if len(decoded) < len(files):
            message += f" Only {len(decoded):,} images were compared."
        problems.note(
            "the images",
            message,
            suggested={"data_reading": '{"leave_out_copies": true}'},
            action=f"Leave out {len(gone):,} image{'s' * (len(gone) > 1)} ({len(gone) / len(files):.0%})",
        )
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


def _copies_in_words(
    torn: Sequence[Sequence[LabelledFile]],
    copies: Sequence[LabelledFile],
    alike: Sequence[Sequence[LabelledFile]],
    files: Sequence[LabelledFile],
) -> str:
    said = []
    if torn:
        shown = listed([" = ".join(file.name for file in group[:2]) for group in torn], 3)
        num = sum(map(len, torn))
        said.append(f"{num:,} images are in several classes, so one of their labels is wrong: {shown}.")
    if leaked := [group[-1] for group in alike if len({file.is_validation for file in group}) > 1]:
        num_held = sum(file.is_validation is True for file in files)
        shown = listed([file.name for file in leaked], 3)
        said.append(f"{len(leaked):,} of {num_held:,} validation images are also in training: {shown}.")
    elif copies:
        shown = listed([file.name for file in copies], 3)
        said.append(f"{len(copies):,} images are copies of others: {shown}.")
        said.append("Some would be in training and in validation." if files[0].is_validation is None else "")
    return " ".join(filter(None, said))


def _split(files: Sequence[LabelledFile]) -> tuple[Rows, Rows]:
    """Return the rows of training and validation: as the folders say, else 80 to 20 of each class."""
    if not files or files[0].is_validation is None:
        return split_rows(np.array([file.label for file in files], dtype=np.int64), len(files))
    is_validation = np.array([bool(file.is_validation) for file in files])
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def _thumbnails(inspection: ImageInspection) -> list[dict[str, Any]]:
    """Return a dozen small images, of as many classes as possible."""
    names = inspection.arrangement.class_names
    channels, height, width = inspection.shape
    factor = min(1.0, THUMBNAIL_SIDE / max(height, width))
    shape = (channels, max(1, round(height * factor)), max(1, round(width * factor)))
    nth = [0] * len(names)
    order = []
    for file in inspection.files:
        order.append((nth[file.label], file.label, file.name))
        nth[file.label] += 1
    found = []
    for _, label, name in sorted(order)[:NUM_THUMBNAILS]:
        try:
            pixels = decoding.decode(inspection.source, name, shape, inspection.value_range)
        except UnreadableImageError:
            continue  # preparing reports it
        encoded = base64.b64encode(pixels.transpose(1, 2, 0).tobytes()).decode("ascii")
        about = dict(zip(("channels", "height", "width"), shape, strict=True))
        found.append({"class": names[label], "name": name.rpartition("/")[2], **about, "pixels": encoded})
    return sorted(found, key=lambda item: str(item["class"]))
