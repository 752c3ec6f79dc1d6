"""What one rank's memory will hold, as far as it can be told before a run is started.

Numbers are those of fp32, in which weights, gradients and optimizer state are kept at every precision.
What it costs to be a process at all (libraries, buffers, a CUDA context) is not in it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from ddp_gui.plan.catalogue import Strategy
from trainers.contract.config import Config, formulas

BYTES_PER_NUMBER = 4
# What an optimizer keeps for each weight, in numbers.
NUMBERS_PER_WEIGHT = {"adamw": 2, "adam": 2, "sgd": 1}

Needs = Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Bytes of one rank; activations are None of a model for which they cannot be told."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int | None

    @property
    def total_bytes(self) -> int:
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + (self.activations_bytes or 0)
        )


class NeedsSource:
    """What each model needs, asked of a training process beside the page: it takes some seconds."""

    def __init__(self, cache_file: Path | None) -> None:
        self._cache_file = cache_file
        self._models: Mapping[str, Any] | None = None
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None

    def of(self, model: str, size: str, dataset: str) -> Needs | None:
        """Return what a model needs for a data set; None while nobody knows yet."""
        if self._models is None:
            self.ask_ahead()
            return None
        found: Needs | None = self._models.get(model, {}).get(size, {}).get(dataset)
        return found

    def ask_ahead(self) -> None:
        """Begin to ask, once."""
        with self._lock:
            if self._asking is None:
                self._asking = threading.Thread(target=self._ask, name="memory-needs", daemon=True)
                self._asking.start()

    def _ask(self) -> None:
        answer = trainer_process.remembered(self._cache_file)
        if answer is None:
            try:
                answer = trainer_process.ask("trainers.plugins.memory")
            except AskError as error:
                print(f"Memory cannot be predicted: {error}")
                answer = {"models": {}}
            else:
                trainer_process.remember(self._cache_file, answer)
        self._models = answer["models"]


def predict(
    config: Config, strategy: Strategy, num_parameters: int | None, needs: Needs | None
) -> Prediction | None:
    """Return what a rank's memory will hold; None where the model's size is not known."""
    if num_parameters is None:
        return None
    weights = BYTES_PER_NUMBER * num_parameters
    has_state = config.optimizer != "sgd" or config.momentum > 0
    state = NUMBERS_PER_WEIGHT[config.optimizer] * weights if has_state else 0
    per_sample = needs.get("activation_bytes_per_sample") if needs else None

    values = config.values()

    def part(name: str, whole: int) -> int:
        return int(whole // max(1, formulas.evaluate(strategy.memory_shares.get(name, "one"), values)))

    gradients = part("gradients", weights) * formulas.evaluate(strategy.gradient_copies, values)
    return Prediction(
        parameters_bytes=part("parameters", weights),
        gradients_bytes=gradients,
        optimizer_bytes=part("optimizer_state", state),
        activations_bytes=None if per_sample is None else part("activations", per_sample * config.batch_size),
    )
