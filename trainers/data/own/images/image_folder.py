"""A folder or zip of images in class folders, decoded once to one size."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.contract.config.data import parse_reading
from trainers.data.dataset import IMAGE_CLASSIFICATION, DataOptions, DataSpec, ImageSplit, Split
from trainers.data.own.common.cache import fingerprint, require_space
from trainers.data.own.common.problems import Problems
from trainers.data.own.common.progress import Progress
from trainers.data.own.common.splits import MappedImageSplit, Rows, split_rows, whole
from trainers.data.own.common.store import SMALL_BYTES, ArrayWriter, Prepared, write_array
from trainers.data.own.images import classes, decoding, many_images
from trainers.data.own.images.classes import Arrangement, LabelledFile
from trainers.data.own.images.decoding import Header, Pixels, Shape, Sums, UnreadableImageError, mean_and_std
from trainers.data.own.images.image_sources import FolderSource, ImageSource, ZipSource

NUM_DECODED_IN_INSPECTION = 2_000
NUM_MEASURED = 500  # images of more than 8 bits whose highest value is looked for
NUM_THUMBNAILS = 12
THUMBNAIL_SIDE = 32
MAX_UNREADABLE = 10_000
UNREADABLE_HINT = "Replace or delete it."


@dataclass(frozen=True, kw_only=True)
class ImageInspection:
    """What was seen: the images whose headers can be read, and the shape they will get.

    Attributes:
        decoded: the pixels of those of `files` that were decoded for the look, by name.
        white: the value that becomes 255 in images of more than 8 bits.
    """

    source: ImageSource
    arrangement: Arrangement
    files: tuple[LabelledFile, ...]
    shape: Shape
    num_decoded: int
    decoded: Mapping[str, Pixels]
    white: float


class Images:
    """Images in class folders at a path."""

    name = "images"

    def __init__(self, path: Path, options: DataOptions, labels: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._options = options
        self._labels = labels

    def options(self) -> dict[str, object]:
        """Return what, besides the files, decides what is prepared."""
        options = self._options
        listed = (
            {}
            if self._labels is None
            else {"images": fingerprint(self._path, {}), "label": options.label_column}
        )
        is_reduced = parse_reading(options.reading).get("leave_out_copies", False)
        return {
            "kind": self.name,
            "skip_unreadable": options.skip_unreadable,
            "copies": not is_reduced,
            **listed,
        }

    def inspect(self, problems: Problems) -> ImageInspection:
        """Read the folders and every header; decode all images, or 2,000 evenly spread ones."""
        decoding.pillow()
        source: ImageSource = (
            FolderSource(self._path, problems) if self._path.is_dir() else ZipSource(self._path, problems)
        )
        if problems.num_faults and (isinstance(source, ZipSource) or not source.files):
            arrangement = Arrangement(class_names=(), files=())
        elif self._labels is not None:
            arrangement = classes.arrange_listed(source, self._labels, problems)
        else:
            arrangement = classes.arrange(source, problems)
        decoding.require_heif([file.name for file in arrangement.files])
        files, headers = self._read_headers(source, arrangement.files, problems)
        shape = decoding.choose_shape(headers) if headers else (1, 1, 1)
        step = max(1, -(-len(files) // NUM_DECODED_IN_INSPECTION))
        sample = files[::step]
        deep = [file.name for file, header in zip(files, headers, strict=True) if header.is_deep]
        white = (
            decoding.white_of(many_images.highest_of(source, deep[:: max(1, len(deep) // NUM_MEASURED)]))
            if deep
            else 255.0
        )
        if deep and white != 65535.0:
            bits = f"{int(white).bit_length()} bits" if white > 1 else "values up to 1"
            problems.note(
                "the images",
                f"{len(deep):,} have room for 16 bits or more and use {bits}: they are scaled by that.",
            )
        failed: set[str] = set()
        decoded: dict[str, Pixels] = {}
        for piece in many_images.decode_all(
            source, sample, shape, Progress("images tried", len(sample)), white=white
        ):
            self._add(piece.faults, problems)
            failed.update(name for name, _ in piece.faults)
            decoded.update(zip((file.name for file in piece.files), piece.pixels.copy(), strict=True))
        good = tuple(file for file in files if file.name not in failed)
        good = self._report_alike(good, decoded, problems)
        return ImageInspection(
            source=source,
            arrangement=arrangement,
            files=good,
            white=white,
            shape=shape,
            num_decoded=len(sample),
            decoded=decoded,
        )

    def _report_alike(
        self, files: tuple[LabelledFile, ...], decoded: Mapping[str, Pixels], problems: Problems
    ) -> tuple[LabelledFile, ...]:
        """Report images that are equal; return those that are to be used."""
        first: dict[bytes, LabelledFile] = {}
        copies: list[tuple[LabelledFile, LabelledFile]] = []
        for file in files:
            pixels = decoded.get(file.name)
            if pixels is None:
                continue
            other = first.setdefault(hashlib.blake2b(pixels.tobytes(), digest_size=16).digest(), file)
            if other is not file:
                copies.append((file, other))
        if len(first) == 1 and len(copies) > 1:
            hint = "Look at them in an image viewer: they may be damaged, or need another program."
            problems.fault("the images", "all of them look the same: there is nothing to learn from.", hint)
        across = [(one, other) for one, other in copies if one.label != other.label]
        for one, other in across[:5]:
            problems.note(
                one.name,
                f"the same image is also in another class: {other.name}.",
                "One of the classes is wrong.",
            )
        if not copies or problems.num_faults:
            return files
        if parse_reading(self._options.reading).get("leave_out_copies"):
            gone = {file.name for file, _ in copies}
            problems.note("the images", f"{len(copies):,} images are copies of others and are left out.")
            return tuple(file for file in files if file.name not in gone)
        some = "" if len(decoded) == len(files) else f" of {len(decoded):,} that were looked at"
        message = (
            f"{len(copies):,} images{some} are copies of others, such as "
            f"{copies[0][0].name} of {copies[0][1].name}: "
        )
        message += "some would be in training and in validation."
        share = len(copies) / max(1, len(files))
        suggested = {"data_reading": '{"leave_out_copies": true}'}
        problems.note(
            "the images",
            message,
            suggested=suggested,
            action=f"Leave out {len(copies):,} copies ({share:.0%})",
        )
        return files

    def about(self, inspection: ImageInspection) -> dict[str, Any]:
        """Return the classes with their counts and some thumbnails."""
        preview: dict[str, Any] = {
            "class_counts": inspection.arrangement.class_counts(),
            "thumbnails": self._thumbnails(inspection),
            "shape": list(inspection.shape),
            "num_images": len(inspection.arrangement.files),
            "num_decoded": inspection.num_decoded,
            "is_sample": inspection.num_decoded < len(inspection.arrangement.files),
        }
        return {"task": IMAGE_CLASSIFICATION, "columns": [], "label_column": None, "preview": preview}

    def estimate(self, inspection: ImageInspection) -> DataSpec | None:
        """Describe the images, taking it that all can be decoded whose header can be read."""
        labels = np.array([file.label for file in inspection.files], dtype=np.int64)
        train, validation = _split(inspection.files, labels)
        size = len(train) * int(np.prod(inspection.shape))
        return self._spec(
            inspection.arrangement.class_names, inspection.shape, len(train), len(validation), size
        )

    def prepare(self, inspection: ImageInspection, folder: Path, problems: Problems) -> dict[str, Any]:
        """Decode all images into one array.

        Raises:
            DataError: when there are unreadable images that are not to be left out.
        """
        size = int(np.prod(inspection.shape))
        require_space(folder, len(inspection.files) * size)
        writer = ArrayWriter(folder, "images", "|u1", inspection.shape)
        kept, sums = self._write(inspection, writer, problems)
        arrays = {"images": writer.close()}
        names = inspection.arrangement.class_names
        if len(kept) < len(inspection.arrangement.files):
            left = Arrangement(class_names=names, files=tuple(kept)).class_counts()
            classes.check_counts(left, "readable images", problems)
        labels = np.array([file.label for file in kept], dtype=np.int64)
        train, validation = _split(kept, labels)
        if not problems.num_faults and not (len(train) and len(validation)):
            side = "validation" if len(train) else "training"
            problems.fault("the data", f"no readable image is left for {side}.", UNREADABLE_HINT)
        problems.check(str(self._path))
        arrays |= {
            "labels": write_array(folder, "labels", labels),
            "train": write_array(folder, "train", train),
            "validation": write_array(folder, "validation", validation),
        }
        mean, std = mean_and_std(sums[train], inspection.shape)
        return {
            "arrays": arrays,
            "class_names": list(names),
            "shape": list(inspection.shape),
            "mean": mean,
            "std": std,
        }

    def _write(
        self, inspection: ImageInspection, writer: ArrayWriter, problems: Problems
    ) -> tuple[list[LabelledFile], Sums]:
        """Write the pixels of all images that can be decoded; return those, and the sums of each."""
        kept: list[LabelledFile] = []
        sums = [np.empty((0, 2, inspection.shape[0]), dtype=np.int64)]
        progress = Progress("images decoded", len(inspection.files))
        for piece in many_images.decode_all(
            inspection.source,
            inspection.files,
            inspection.shape,
            progress,
            inspection.decoded,
            inspection.white,
        ):
            self._add(piece.faults, problems)
            kept += piece.files
            writer.append(piece.pixels)
            sums.append(piece.sums)
        return kept, np.concatenate(sums)

    def spec(self, prepared: Prepared) -> DataSpec:
        """Describe the prepared images."""
        meta = prepared.meta
        shape = meta["shape"][0], meta["shape"][1], meta["shape"][2]
        num_train, num_validation = len(prepared.array("train")), len(prepared.array("validation"))
        size = num_train * int(np.prod(shape))
        return self._spec(tuple(meta["class_names"]), shape, num_train, num_validation, size)

    def splits(self, prepared: Prepared, device: torch.device) -> tuple[Split, Split]:
        """Return training and validation images; the mean and deviation are of the training images."""
        meta = prepared.meta
        channels = meta["shape"][0]
        mean = meta["mean"] if self._options.normalise else [0.0] * channels
        std = meta["std"] if self._options.normalise else [255.0] * channels
        images, labels = prepared.array("images"), prepared.array("labels")
        labels_here = labels.slice(0, len(labels))
        found: list[Split] = []
        for side in ("train", "validation"):
            rows = prepared.array(side).slice(0, len(prepared.array(side)))
            if images.num_bytes <= SMALL_BYTES or device.type != "cpu":
                pixels = whole(images, rows, device)
                targets = torch.from_numpy(labels_here[rows])
                found.append(ImageSplit(pixels, targets, mean=mean, std=std, device=device))
            else:
                found.append(MappedImageSplit(images, labels_here, rows, mean=mean, std=std))
        return found[0], found[1]

    def _spec(
        self, names: tuple[str, ...], shape: Shape, num_train: int, num_validation: int, num_bytes: int
    ) -> DataSpec:
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
            num_bytes=num_bytes,
        )

    def _read_headers(
        self, source: ImageSource, files: Sequence[LabelledFile], problems: Problems
    ) -> tuple[list[LabelledFile], list[Header]]:
        kept, headers = [], []
        num_unreadable = 0
        progress = Progress("image headers read", len(files))
        answers = many_images.read_headers(source, files)
        for file, answer in zip(files, answers, strict=True):
            progress.add(1)
            if isinstance(answer, Header):
                kept.append(file)
                headers.append(answer)
            else:
                self._add([(file.name, answer)], problems)
                num_unreadable += 1
            if num_unreadable > MAX_UNREADABLE:
                message = f"more than {MAX_UNREADABLE:,} images cannot be read; the rest was not tried."
                problems.fault("the data", message, "Mend them, or leave them out yourself.")
                return [], []
        progress.finish()
        return kept, headers

    def _add(self, faults: Sequence[tuple[str, str]], problems: Problems) -> None:
        for name, message in faults:
            skip = self._options.skip_unreadable
            problems.unreadable(name, f"{message}.", UNREADABLE_HINT, skip=skip)

    def _thumbnails(self, inspection: ImageInspection) -> list[dict[str, Any]]:
        channels, height, width = inspection.shape
        factor = min(1.0, THUMBNAIL_SIDE / max(height, width))
        shape = (channels, max(1, round(height * factor)), max(1, round(width * factor)))
        found = []
        for file in _spread_over_classes(inspection.files, len(inspection.arrangement.class_names)):
            try:
                pixels = many_images.decode_one(inspection.source, file.name, shape, inspection.white)
            except UnreadableImageError:
                continue  # it is named where it is counted
            found.append(
                {
                    "class": inspection.arrangement.class_names[file.label],
                    "name": file.name.rpartition("/")[2],
                    "channels": shape[0],
                    "height": shape[1],
                    "width": shape[2],
                    "pixels": base64.b64encode(pixels.transpose(1, 2, 0).tobytes()).decode("ascii"),
                }
            )
        return found


def _split(files: Sequence[LabelledFile], labels: Rows) -> tuple[Rows, Rows]:
    """Return the rows of training and validation: as the folders say, else 80 to 20 of each class."""
    if not files or files[0].is_validation is None:
        return split_rows(labels, len(files))
    is_validation = np.array([bool(file.is_validation) for file in files])
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def _spread_over_classes(files: Sequence[LabelledFile], num_classes: int) -> list[LabelledFile]:
    """Return a dozen images, of as many classes as there are."""
    by_class: list[list[LabelledFile]] = [[] for _ in range(num_classes)]
    for file in files:
        by_class[file.label].append(file)
    full = [group for group in by_class if group]
    if not full:
        return []
    step = max(1, len(full) // NUM_THUMBNAILS)
    chosen = full[::step][:NUM_THUMBNAILS]
    each = -(-NUM_THUMBNAILS // len(chosen))
    picked = [group[:: max(1, len(group) // each)][:each] for group in chosen]
    return [file for group in picked for file in group][:NUM_THUMBNAILS]
