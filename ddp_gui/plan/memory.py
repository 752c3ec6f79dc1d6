"""The predicted memory of one rank, as far as it is known before the start.

Sizes are for fp32, in which weights, gradients and optimizer state are stored at every precision. The
baseline of a process is not included on the CPU. On a GPU it is: each rank takes a CUDA context and
workspaces from the memory of its GPU.
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
# How many numbers an optimizer stores per weight.
NUMBERS_PER_WEIGHT = {"adamw": 2, "adam": 2, "sgd": 1}
# What a rank takes of its GPU besides the model. Not measured here: a CUDA context with torch's kernels, as
# nvidia-smi shows it on current cards; torch's workspaces for cuBLAS (32 MiB on Hopper, 8 MiB before); and
# NCCL's buffers, where there are several ranks.
CUDA_CONTEXT_BYTES = 500_000_000
CUBLAS_WORKSPACE_BYTES = 32 * 2**20
NCCL_BUFFER_BYTES = 200_000_000

Needs = Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Bytes of one rank; activations are None if they cannot be predicted for the model.

    Attributes:
        process_bytes: CUDA's context and the workspaces of its libraries; 0 on the CPU.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int | None
    process_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + (self.activations_bytes or 0)
            + self.process_bytes
        )


class NeedsSource:
    """The memory needs of each model, computed by a training process in the background, in some seconds."""

    def __init__(self, cache_file: Path | None) -> None:
        self._cache_file = cache_file
        self._models: Mapping[str, Any] | None = None
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None

    def of(self, model: str, size: str, dataset: str) -> Needs | None:
        """Return the needs of a model for a data set; None until they are known."""
        if self._models is None:
            self.ask_ahead()
            return None
        found: Needs | None = self._models.get(model, {}).get(size, {}).get(dataset)
        return found

    def ask_ahead(self) -> None:
        """Start the training process, once."""
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
    config: Config,
    strategy: Strategy,
    num_parameters: int | None,
    needs: Needs | None,
    *,
    is_on_gpu: bool = False,
) -> Prediction | None:
    """Return the predicted memory of a rank; None if the model's size is not known."""
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
        process_bytes=_process_bytes(config.world_size) if is_on_gpu else 0,
    )


def _process_bytes(num_ranks: int) -> int:
    return CUDA_CONTEXT_BYTES + CUBLAS_WORKSPACE_BYTES + (NCCL_BUFFER_BYTES if num_ranks > 1 else 0)
