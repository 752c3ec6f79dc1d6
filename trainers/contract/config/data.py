"""What a run learns from."""

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
    """What a run learns from."""

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
        help="The column to be predicted; empty: one called label, target or class, else the last.",
        topic="data",
    )
    data_task: str = setting(
        "auto",
        label="What your data is",
        help="auto looks at the data and says what it took it for.",
        topic="data",
        choices=("auto", *TASKS),
    )
    skip_unreadable: bool = setting(
        False,
        label="Leave out unreadable samples",
        help="Off: your data is refused with the names of the samples that cannot be read.",
        topic="data",
    )
    sequence_length: int | None = setting(
        None,
        label="Sequence length",
        help="Words or characters the model sees at once; empty: what suits the data set.",
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
        help="Moves training images by up to this many pixels each way.",
        topic="data",
        minimum=0,
        maximum=256,
    )
    normalise: bool = setting(
        True,
        label="Normalise",
        help="Brings inputs to mean 0 and deviation 1, which learns faster.",
        topic="data",
    )
