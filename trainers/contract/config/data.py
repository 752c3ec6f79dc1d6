"""The training data."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting

TASKS = (
    "image_classification",
    "text_classification",
    "language_modelling",
    "tabular_classification",
    "tabular_regression",
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The training data."""

    data_path: str = setting(
        "",
        label="Path of your data",
        help="For your own data: a folder or zip of images in class folders, a table, or a text file.",
        topic="data",
        max_length=4096,
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
