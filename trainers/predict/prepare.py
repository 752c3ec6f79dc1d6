"""Converts a user's input (an image, a table row, a text) into a model's input.

A wrong input raises `InputError`, whose message names the field, the value and the allowed values.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.nn import functional

from trainers.checkpoint import description
from trainers.checkpoint.description import IMAGE, INK_SHARE, TABLE, Description
from trainers.data.dataset import TableColumn, Tokenizer
from trainers.data.own import image_files
from trainers.data.own.image_files import UnreadableImageError
from trainers.data.text import UNKNOWN
from trainers.report.samples import as_base64, cut, short, thumbnails

MAX_CHARACTERS = 100_000
MOST_SHOWN = 200
# Pixels of a drawing per pixel of the model's input, before the drawing is centred.
FINER = 4
MAX_CELL = 40
# Optional fields of an image and their ranges: degrees, share of the width, share of the brightness.
VARIATIONS = {"rotate": (-180, 180), "shift": (-0.5, 0.5), "noise": (0, 1)}


class InputError(ValueError):
    """An input is not valid for the model."""


@dataclass(frozen=True, kw_only=True)
class PreparedInput:
    """An input as a batch of one for the model, and as JSON values for the page."""

    tensor: Tensor
    shown: dict[str, Any]


def prepare(info: Description, inputs: Mapping[str, Any], tokenizer: Tokenizer | None) -> PreparedInput:
    """Convert an input; docs/endpoints.md lists its fields.

    Args:
        info: the info of the model.
        tokenizer: for texts.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(f"inputs is {str(inputs)[:40]!r}; allowed: an object")
    kind = info["input"]["kind"]
    if kind == IMAGE:
        return _prepare_image(info, inputs)
    if kind == TABLE:
        return _prepare_row(info, _field(inputs, "row", Mapping, "an object with a value for each column"))
    text = _field(inputs, "text", str, "a text")
    if not text.strip():
        raise InputError("text is empty; allowed: at least one character")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"text has {len(text):,} characters; allowed: {MAX_CHARACTERS:,}")
    assert tokenizer is not None, "a text classifier has a tokenizer"
    return _prepare_text(info, text, tokenizer)


def _field(inputs: Mapping[str, Any], name: str, kind: type, allowed: str) -> Any:
    if name not in inputs:
        names_text = ", ".join(sorted(map(str, inputs)))[:80] or "nothing"
        raise InputError(f"inputs has {names_text}, but this model takes: {name}, {allowed}")
    if not isinstance(inputs[name], kind):
        raise InputError(f"{name} is {str(inputs[name])[:40]!r}; allowed: {allowed}")
    return inputs[name]


class _Sent:
    """One file that was sent, as a source of images."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, name: str) -> BinaryIO:
        del name
        return io.BytesIO(self._content)


def _prepare_image(info: Description, inputs: Mapping[str, Any]) -> PreparedInput:
    shape = tuple(info["input"]["shape"])
    if "pixels" in inputs:
        stored = _given_pixels(inputs["pixels"], shape)
    else:
        name = "drawing" if "drawing" in inputs else "image"
        allowed = "an image file as base64, or a data URL of one (or pixels: a list of rows)"
        sent = _field(inputs, name, str, allowed)
        largest = info["input"].get("largest", 255)
        if name == "drawing":
            fine = (shape[0], shape[1] * FINER, shape[2] * FINER)
            stored = _centred(_decode(sent, fine), info, shape)
        else:
            stored = _decode(sent, shape).float()
        stored = stored * (largest / 255.0)
    stored = _varied(stored, info, inputs)
    mean, std = (torch.tensor(info["input"][name]).reshape(-1, 1, 1) for name in ("mean", "std"))
    # Round, because training reads bytes.
    stored = stored.round()
    picture = thumbnails(stored.unsqueeze(0), info["input"].get("largest", 255))[0]
    channels, height, width = picture.shape
    shown: dict[str, Any] = {"height": height, "width": width, "channels": channels}
    shown |= {"pixels": as_base64(picture.permute(1, 2, 0)), "sides": f"{shape[2]} × {shape[1]}"}
    return PreparedInput(tensor=((stored - mean) / std).unsqueeze(0), shown={"image": shown})


def _varied(image: Tensor, info: Description, inputs: Mapping[str, Any]) -> Tensor:
    """Return an image rotated by `rotate` degrees, shifted right by the fraction `shift` of its width, with
    `noise` added.

    The noise has a fixed seed, so that the same input has the same answer.
    """
    variations = {name: inputs.get(name, 0) for name in VARIATIONS}
    for name, value in variations.items():
        low, high = VARIATIONS[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            raise InputError(f"{name} is {str(value)[:40]!r}; allowed: a number from {low} to {high}")
    if variations["rotate"] or variations["shift"]:
        angle = math.radians(variations["rotate"])
        cosine, sine, ratio = math.cos(angle), math.sin(angle), image.shape[1] / image.shape[2]
        # Maps positions of the result to positions of the image, both from -1 to 1, so x shifts by twice the
        # fraction.
        moved = -2 * variations["shift"]
        turn = [
            [cosine, sine * ratio, cosine * moved],
            [-sine / ratio, cosine, -sine / ratio * moved],
        ]
        grid = functional.affine_grid(torch.tensor([turn]), [1, *image.shape], align_corners=False)
        background = info["input"].get("background", 0)  # fills the corners
        turned = functional.grid_sample((image - background).unsqueeze(0), grid, align_corners=False)[0]
        image = turned + background
    if variations["noise"]:
        largest = info["input"].get("largest", 255)
        generator = torch.Generator().manual_seed(0)
        image = image + variations["noise"] * largest * torch.randn(image.shape, generator=generator)
        image = image.clamp(0, largest)
    return image


def _decode(sent: str, shape: tuple[int, ...]) -> Tensor:
    """Return (channels, height, width) bytes of an image file in base64."""
    content = sent.partition(",")[2] if sent.startswith("data:") else sent
    try:
        raw = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"image is not base64 ({error})") from error
    channels, height, width = shape
    try:
        return torch.from_numpy(image_files.decode(_Sent(raw), "image", (channels, height, width)).copy())
    except UnreadableImageError as error:
        raise InputError(f"image cannot be read: {error}") from error


def _given_pixels(pixels: Any, shape: tuple[int, ...]) -> Tensor:
    """Return pixels sent as nested lists: (height, width) or (channels, height, width)."""
    allowed = f"lists of numbers of shape {list(shape)}" + (f" or {list(shape[1:])}" if shape[0] == 1 else "")
    try:
        values = torch.tensor(pixels, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise InputError(f"pixels is not rectangular; allowed: {allowed}") from error
    if values.dim() == 2 and shape[0] == 1:
        values = values.unsqueeze(0)
    if tuple(values.shape) != shape or not bool(values.isfinite().all()):
        raise InputError(f"pixels has the shape {list(values.shape)}; allowed: {allowed}")
    return values


def _centred(drawing: Tensor, info: Description, shape: tuple[int, ...]) -> Tensor:
    """Return a drawing with its object centred and scaled to the size of objects in the training images."""
    inputs = info["input"]
    background = inputs.get("background", 0) * 255.0 / inputs.get("largest", 255)
    is_object = ((drawing.float() - background).abs() > INK_SHARE * 255).any(dim=0)
    if not bool(is_object.any()):
        raise InputError("the drawing is empty: draw something")
    rows, columns = (torch.nonzero(is_object.any(dim=1 - side)).flatten() for side in (0, 1))
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    left, right = int(columns[0]), int(columns[-1]) + 1
    box = drawing[:, top:bottom, left:right].float()
    _, height, width = shape
    # The side lengths of the image around the box, in pixels of the drawing.
    longest = max(box.shape[1] / height, box.shape[2] / width) / inputs.get("extent", 1.0)
    sides = (max(box.shape[1], round(longest * height)), max(box.shape[2], round(longest * width)))
    picture = torch.full((box.shape[0], *sides), background)
    y, x = ((side - part) // 2 for side, part in zip(sides, box.shape[1:], strict=True))
    picture[:, y : y + box.shape[1], x : x + box.shape[2]] = box
    return functional.interpolate(picture.unsqueeze(0), (height, width), mode="area")[0]


def _prepare_row(info: Description, row: Mapping[str, Any]) -> PreparedInput:
    columns = description.columns_of(info["input"])
    unknown = sorted(set(map(str, row)) - {column.name for column in columns})
    if unknown:
        names = ", ".join(column.name for column in columns)[:400]
        raise InputError(f"row has {unknown[0][:MAX_CELL]!r}, but the columns are: {names}")
    numbers: list[float] = []
    mean = info["input"]["mean"]
    for column in columns:
        numbers += _numbers_of(column, row, mean[len(numbers) : len(numbers) + column.width])
    std = torch.tensor(info["input"]["std"], dtype=torch.float64)
    scaled = (torch.tensor(numbers, dtype=torch.float64) - torch.tensor(mean, dtype=torch.float64)) / std
    names = info["input"]["feature_names"]
    shown = [
        {"name": cut(name, MAX_CELL), "value": short(value)}
        for name, value in zip(names, scaled.tolist(), strict=False)
    ]
    return PreparedInput(tensor=scaled.float().unsqueeze(0), shown={"numbers": shown[:MOST_SHOWN]})


def _numbers_of(column: TableColumn, row: Mapping[str, Any], mean: Sequence[float]) -> list[float]:
    """Return the numbers that encode a cell, in the column's own units."""
    cell = row.get(column.name, "")
    is_empty = cell is None or (isinstance(cell, str) and not cell.strip())
    if is_empty and not column.has_missing:
        raise InputError(f"row[{column.name!r}] is empty; allowed: {_allowed(column)}")
    flag = [float(is_empty)] if column.has_missing else []
    if not column.values:
        # Replace an empty cell by the mean, which is 0 after scaling.
        return [mean[0] if is_empty else _number(column, cell), *flag]
    is_known = not is_empty and str(cell) in column.values
    if not is_empty and not is_known and not column.has_other:
        raise InputError(f"row[{column.name!r}] is {str(cell)[:MAX_CELL]!r}; allowed: {_allowed(column)}")
    one_hot = [float(is_known and str(cell) == value) for value in column.values]
    other = [float(not is_empty and not is_known)] if column.has_other else []
    return [*one_hot, *other, *flag]


def _number(column: TableColumn, cell: Any) -> float:
    try:
        value = (
            float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else math.nan
        )
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"row[{column.name!r}] is {str(cell)[:MAX_CELL]!r}; allowed: a number")
    return value


def _allowed(column: TableColumn) -> str:
    return ", ".join(column.values)[:400] if column.values else "a number"


def _prepare_text(info: Description, text: str, tokenizer: Tokenizer) -> PreparedInput:
    length = info["input"]["shape"][0]
    tokens = tokenizer.encode([text], length)[0]
    if not tokens:
        raise InputError(f"text is {text[:MAX_CELL]!r}, which contains no word that the model can read")
    is_own = info["input"]["tokenizer"]["kind"] != description.PRETRAINED
    shown = [
        {"text": tokenizer.decode([token]), "is_known": not (is_own and token == UNKNOWN)} for token in tokens
    ]
    padding = info["input"]["padding"]
    row = tokens + [padding] * (length - len(tokens))
    about_tokens = {"tokens": shown[:MOST_SHOWN], "num_tokens": len(tokens), "max_tokens": length}
    return PreparedInput(tensor=torch.tensor([row]), shown=about_tokens)
