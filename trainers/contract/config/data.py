"""The training data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trainers.contract.config.settings import setting

TASKS = (
    "image_classification",
    "text_classification",
    "language_modelling",
    "tabular_classification",
    "tabular_regression",
)
COLUMN_KINDS = (
    "number",
    "number, decimal comma",
    "number, decimal point",
    "category",
    "text",
    "date",
    "ignored",
)
# How a table is read where the user overrides what was found: each name with the JSON values it takes.
READING = {
    "columns": f"an object of column names with one of: {', '.join(COLUMN_KINDS)}",
    "missing": "an object of column names with a list of the spellings that mean a missing value",
    "text": "a list of the columns whose texts are read together",
    "join_labels": "true or false",
    "label_missing": "true or false",
    "leave_out_copies": "true or false",
    "leave_out_rare": "true or false",
    "leave_out_last": "a number of rows from 0 to 100",
    "header": "true or false",
    "delimiter": "the character between cells",
    "encoding": "the name of an encoding such as cp1252",
    "sheet": "the name of a sheet",
}


def parse_reading(text: str) -> dict[str, Any]:
    """Return how a table is to be read, of its JSON text; empty for what is found automatically.

    Raises:
        ValueError: saying what is allowed.
    """
    if not text.strip():
        return {}
    allowed = f"empty, or a JSON object with any of: {', '.join(READING)}"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(allowed) from None
    if not isinstance(values, dict) or not values.keys() <= READING.keys():
        raise ValueError(allowed)
    for name, value in values.items():
        if not _is_reading(name, value):
            raise ValueError(f"{name}: {READING[name]}")
    return values


def _is_reading(name: str, value: Any) -> bool:
    if name == "columns":
        return isinstance(value, dict) and all(kind in COLUMN_KINDS for kind in value.values())
    if name == "missing":
        return isinstance(value, dict) and all(_is_texts(each) for each in value.values())
    if name == "text":
        return _is_texts(value)
    if name == "leave_out_last":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100
    if name == "delimiter":
        return isinstance(value, str) and len(value) == 1
    return isinstance(value, str if name in ("encoding", "sheet") else bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The training data."""

    data_path: str = setting(
        "",
        label="Path of your data",
        help="For your own data: a folder or zip of images in class folders, a table, or a text file.",
        topic="data",
        max_length=4096,
        is_path=True,
    )
    label_column: str = setting(
        "",
        label="Label column",
        help="The column to predict. Empty: the one called label, target or class, else the last one.",
        topic="data",
    )
    data_task: str = setting(
        "auto",
        label="What your data is",
        help="auto recognises the task from the data and shows what it found.",
        topic="data",
        choices=("auto", *TASKS),
    )
    skip_unreadable: bool = setting(
        False,
        label="Leave out unreadable samples",
        help="Off: data with unreadable samples is refused, and the samples are named.",
        topic="data",
    )
    images_path: str = setting(
        "",
        label="Folder of the images",
        help="For a table with a column of image file names: the folder that contains them.",
        topic="data",
        max_length=4096,
        is_path=True,
    )
    data_reading: str = setting(
        "",
        label="How your table is read",
        help="What was changed in the list of columns, as JSON. Empty: as found automatically.",
        topic="data",
        max_length=20_000,
        check=parse_reading,
    )
    sequence_length: int | None = setting(
        None,
        label="Sequence length",
        help="Words or characters that the model sees at once. Empty: the data set's default.",
        topic="data",
        minimum=2,
        maximum=65536,
    )
    random_flip: bool = setting(
        False,
        label="Flip images",
        help="Mirrors half of the training images left to right. Not for digits or letters.",
        topic="data",
    )
    random_crop: int = setting(
        0,
        label="Crop images, pixels",
        help="Shifts training images by up to this many pixels in each direction.",
        topic="data",
        minimum=0,
        maximum=256,
    )
    normalise: bool = setting(
        True,
        label="Normalise",
        help="Scales inputs to mean 0 and standard deviation 1, which speeds up learning.",
        topic="data",
    )
