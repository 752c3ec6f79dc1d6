"""What the page writes beside a run's configuration, for its own use; training does not read it.

`data.json`: what the run's data was when it was started, so that a copied run opens anywhere.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ddp_gui.plan.catalogue import Catalogue, Dataset
from ddp_gui.plan.plan import Plan
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically

DATA = "data.json"
MAX_WORDS = 2_000


def note_data(run: RunDirectory, plan: Plan) -> None:
    """Record the run's data, and the size of its model with it."""
    name = plan.dataset.name
    counts = {
        size.name: size.num_parameters[name] for size in plan.model.sizes if name in size.num_parameters
    }
    write_json_atomically(
        run.path / DATA, {"dataset": asdict(plan.dataset), "counts": {plan.model.name: counts}}
    )


def with_noted_data(run: RunDirectory, catalogue: Catalogue) -> Catalogue:
    """Return the catalogue with the run's data as recorded at the run's start, if it was."""
    try:
        noted = read_json(run.path / DATA)
        dataset, counts = Dataset(**noted["dataset"]), noted["counts"]
        _check(dataset, counts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return catalogue
    if catalogue.datasets.get(dataset.name) == dataset:
        return catalogue
    return catalogue.with_dataset(dataset, counts)


def _check(dataset: Dataset, counts: Any) -> None:
    """Refuse invalid values; a copied run may contain any file.

    Raises:
        TypeError, AttributeError: when it is not as `note_data` writes it.
    """
    for name, value in vars(dataset).items():
        is_number = name.startswith("num_")
        is_missing = value is None and name == "num_places"
        if not is_missing and not (_is_count(value) if is_number else _is_words(value)):
            raise TypeError(f"{name} of the noted data")
    for of_model in counts.values():
        if not all(map(_is_count, of_model.values())):
            raise TypeError("the noted numbers of parameters")


def _is_words(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_WORDS


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
