"""What the page writes beside a run's configuration, for its own use; training reads none of it.

`data.json`: what the run's data was when it was started, so that a copied run opens anywhere.
`resumed.json`: where the run was resumed with another global batch, which changes how long it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ddp_gui.catalogue import Catalogue, Dataset
from ddp_gui.plan import Plan
from trainers.contract.config import Config
from trainers.contract.rundir import Checkpoint, RunDirectory, write_json_atomically

DATA = "data.json"
RESUMED = "resumed.json"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where in its epochs a checkpoint was saved; `samples_in_epoch` counts those of all ranks."""

    step: int
    epoch: int
    samples_in_epoch: int

    def num_steps(self, config: Config, num_train: int, num_replicas: int) -> int:
        """Return the last step of a run that goes on from here with this configuration."""
        steps = self.step
        if self.epoch < config.num_epochs:
            of_this_epoch = -(-(num_train - self.samples_in_epoch) // config.global_batch(num_replicas))
            whole_epochs = config.num_epochs - self.epoch - 1
            steps += of_this_epoch + whole_epochs * config.steps_per_epoch(num_train, num_replicas)
        return steps if config.max_steps is None else min(steps, config.max_steps)


def position_of(checkpoint: Checkpoint) -> Position | None:
    """Return where a checkpoint was saved; None where it does not say."""
    try:
        progress = json.loads((checkpoint.path / "state.json").read_text(encoding="utf-8"))["progress"]
        return _position(progress)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def resumed_from(run: RunDirectory) -> Position | None:
    """Return where the run was resumed with another global batch, if it was."""
    try:
        return _position(json.loads((run.path / RESUMED).read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def note_resumed(run: RunDirectory, position: Position | None) -> None:
    """Note where the run goes on with another global batch; None: it is as long as its configuration says."""
    path = run.path / RESUMED
    if position is None:
        path.unlink(missing_ok=True)
    else:
        write_json_atomically(path, asdict(position))


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


def _position(raw: Mapping[str, Any]) -> Position:
    return Position(**{name: int(raw[name]) for name in ("step", "epoch", "samples_in_epoch")})
