"""What the page writes beside a run's configuration, for its own use; training does not read it.

`data.json`: what the run's data was when it was started, so that a copied run opens anywhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from ddp_gui.catalogue import Catalogue, Dataset
from ddp_gui.plan import Plan
from trainers.contract.rundir import RunDirectory, write_json_atomically

DATA = "data.json"


def note_data(run: RunDirectory, plan: Plan) -> None:
    """Note what the run's data is, and how large its model becomes with it."""
    name = plan.dataset.name
    counts = {
        size.name: size.num_parameters[name] for size in plan.model.sizes if name in size.num_parameters
    }
    write_json_atomically(
        run.path / DATA, {"dataset": asdict(plan.dataset), "counts": {plan.model.name: counts}}
    )


def with_noted_data(run: RunDirectory, catalogue: Catalogue) -> Catalogue:
    """Return the catalogue with the run's data as it was when the run was started, where that is noted."""
    try:
        noted = json.loads((run.path / DATA).read_text(encoding="utf-8"))
        dataset, counts = Dataset(**noted["dataset"]), noted["counts"]
    except (OSError, ValueError, LookupError, TypeError):
        return catalogue
    if catalogue.datasets.get(dataset.name) == dataset:
        return catalogue
    return catalogue.with_dataset(dataset, counts)
