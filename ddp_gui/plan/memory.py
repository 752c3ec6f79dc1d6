"""Memory predictions, and warnings and advice before the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from ddp_gui.devices.capacity import Machine
from ddp_gui.plan.plan import Plan
from trainers.contract.catalogue import CatalogueStrategy
from trainers.contract.config import Config, options
from trainers.machine import nvml

BYTES_PER_NUMBER = 4
# Number of values that an optimizer stores per weight.
NUMBERS_PER_WEIGHT = {"adamw": 2, "adam": 2, "sgd": 1}
# GPU memory of a rank in addition to the model. Not measured here: a CUDA context with torch's kernels, as
# nvidia-smi shows it on current cards; torch's workspaces for cuBLAS (32 MiB on Hopper, 8 MiB before); and
# NCCL's buffers with several ranks.
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
    """The memory needs of each model, which a background process computes within seconds."""

    def __init__(self, cache_file: Path | None) -> None:
        self._cache_file = cache_file
        self._models: Mapping[str, Any] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def needs_of(self, model: str, size: str, dataset: str) -> Needs | None:
        """Return the needs of a model for a data set; None until they are known."""
        if self._models is None:
            self.prefetch()
            return None
        needs: Needs | None = self._models.get(model, {}).get(size, {}).get(dataset)
        return needs

    def prefetch(self) -> None:
        """Start the training process, once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, name="memory-needs", daemon=True)
                self._thread.start()

    def _load(self) -> None:
        try:
            self._models = trainer_process.ask_once(self._cache_file, "trainers.plugins.memory")["models"]
        except AskError as error:
            print(f"Memory cannot be predicted: {error}")
            self._models = {}


def predict(
    config: Config,
    strategy: CatalogueStrategy,
    num_parameters: int | None,
    needs: Needs | None,
    *,
    is_on_gpu: bool = False,
) -> Prediction | None:
    """Return the predicted memory of a rank; None if the model's size is unknown."""
    if num_parameters is None:
        return None
    weights_bytes = BYTES_PER_NUMBER * num_parameters
    has_state = config.optimizer != "sgd" or config.momentum > 0
    state_bytes = NUMBERS_PER_WEIGHT[config.optimizer] * weights_bytes if has_state else 0
    bytes_per_sample = needs.get("activation_bytes_per_sample") if needs else None

    values = config.values()

    def share_bytes(name: str, total_bytes: int) -> int:
        return int(
            total_bytes // max(1, options.evaluate_formula(strategy.memory_shares.get(name, "one"), values))
        )

    gradients_bytes = share_bytes("gradients", weights_bytes) * options.evaluate_formula(
        strategy.gradient_copies, values
    )
    return Prediction(
        parameters_bytes=share_bytes("parameters", weights_bytes),
        gradients_bytes=gradients_bytes,
        optimizer_bytes=share_bytes("optimizer_state", state_bytes),
        activations_bytes=None
        if bytes_per_sample is None
        else share_bytes("activations", bytes_per_sample * config.batch_size),
        process_bytes=_process_bytes(config.world_size) if is_on_gpu else 0,
    )


def _process_bytes(num_ranks: int) -> int:
    return CUDA_CONTEXT_BYTES + CUBLAS_WORKSPACE_BYTES + (NCCL_BUFFER_BYTES if num_ranks > 1 else 0)


# The highest learning rates that usually work, and the lowest with an effect within a run.
USUAL_RATES = {"adamw": (1e-6, 0.01), "adam": (1e-6, 0.01), "sgd": (1e-5, 0.5)}
FAR_TOO_HIGH = 3.0
FEW_STEPS_PER_EPOCH = 5
FEW_STEPS_BETWEEN_SAVES = 10

# The CPU of the following measurements, which may not apply to other CPUs.
MEASURED_ON = "an AMD EPYC with AVX512-BF16 (Zen 4)"
# Step time in bf16 as a share of that in fp32 (docs/machine.md, "bf16 on a CPU").
BF16_STEP_SHARES = {"convolution": "0.66 to 0.76", "transformer": "0.49 to 0.62"}

# Compiled step time relative to uncompiled, on the same CPU (docs/strategies.md, "torch.compile").
COMPILED_STEP_SHARES = {
    "linear": "1.5 times as long",
    "dense": "1.1 times as long",
    "convolution": "0.9 to 1.4 times as long",
    "transformer": "0.90 to 0.97 times as long",
}

Rule = Callable[[Plan, Machine], str | None]


def warnings_before_start(plan: Plan, machine: Machine) -> list[str]:
    """Return one sentence for each probable mistake in the plan."""
    rules: tuple[Rule, ...] = (
        _rate_too_high,
        _rate_too_low,
        _more_ranks_than_cores,
        _few_steps,
        _saves_too_often,
        _warms_up_too_long,
        _workers_without_cores,
        _batch_norm_without_gpus,
        _precision_of_older_gpus,
        _emulated_on_the_cpu,
        _compiled_on_the_cpu,
    )
    return [warning for rule in rules if (warning := rule(plan, machine)) is not None]


def faster_precision(plan: Plan, machine: Machine) -> str | None:
    """Return advice to use bf16 if the CPU supports bf16 and this kind of model gets faster."""
    share = BF16_STEP_SHARES.get(plan.model.family)
    if plan.device_kind != "cpu" or not machine.cpu_has_bf16 or plan.config.precision != "fp32" or not share:
        return None
    return (
        f"This CPU has bf16 arithmetic. On {MEASURED_ON}, a step of such a model in bf16 took {share} of "
        "its time in fp32. The losses differ slightly."
    )


def _rate_too_high(plan: Plan, _machine: Machine) -> str | None:
    rate, (_, max_rate) = plan.peak_learning_rate, USUAL_RATES[plan.config.optimizer]
    if rate < FAR_TOO_HIGH * max_rate:
        return None
    return (
        f"A rate of {rate:g} is {rate / max_rate:,.0f} times the highest that usually works with "
        f"{plan.config.optimizer}, {max_rate:g}: the loss will probably rise or become NaN."
    )


def _rate_too_low(plan: Plan, _machine: Machine) -> str | None:
    rate, (min_rate, _) = plan.peak_learning_rate, USUAL_RATES[plan.config.optimizer]
    if rate >= min_rate:
        return None
    return (
        f"A rate of {rate:g} is so low that the model will hardly learn: {min_rate:g} is the usual minimum."
    )


def _more_ranks_than_cores(plan: Plan, machine: Machine) -> str | None:
    ranks = plan.config.nproc_per_node
    if plan.device_kind == "cuda" or ranks <= machine.num_cores:
        return None
    cores = f"{machine.num_cores} CPU core{'' if machine.num_cores == 1 else 's'}"
    return (
        f"{ranks} ranks share {cores}: this shows how ranks work together, but one rank per core is faster."
    )


def _few_steps(plan: Plan, _machine: Machine) -> str | None:
    if plan.steps_per_epoch >= FEW_STEPS_PER_EPOCH or plan.num_steps >= 100:
        return None
    plural = "" if plan.steps_per_epoch == 1 else "s"
    return (
        f"Only {plan.steps_per_epoch} step{plural} per epoch, {plan.num_steps} in all: "
        "a smaller batch gives the optimizer more steps."
    )


def _saves_too_often(plan: Plan, _machine: Machine) -> str | None:
    interval = plan.config.checkpoint_every_steps or plan.steps_per_epoch
    if interval >= FEW_STEPS_BETWEEN_SAVES or plan.num_steps < FEW_STEPS_BETWEEN_SAVES:
        return None
    interval_text = "step" if interval == 1 else f"{interval} steps"
    return (
        f"A checkpoint every {interval_text} keeps the disk busy; an interval of 100 steps or more is usual."
    )


def _warms_up_too_long(plan: Plan, _machine: Machine) -> str | None:
    if plan.num_warmup_steps * 2 <= plan.num_steps:
        return None
    return (
        f"The warm-up takes {plan.num_warmup_steps:,} of {plan.num_steps:,} steps: the run reaches the full "
        "learning rate late or never."
    )


def _workers_without_cores(plan: Plan, machine: Machine) -> str | None:
    workers = plan.config.num_workers * plan.config.nproc_per_node
    if workers <= 2 * machine.num_cores:
        return None
    scope_text = "in all" if plan.config.num_nodes == 1 else "of each machine"
    return f"{workers} loader workers {scope_text} share {machine.num_cores} CPU cores: fewer will be faster."


def _batch_norm_without_gpus(plan: Plan, _machine: Machine) -> str | None:
    if not plan.config.sync_batchnorm or plan.device_kind == "cuda":
        return None
    return "SyncBatchNorm has no effect on the CPU: each rank uses the statistics of its own batch."


def _precision_of_older_gpus(plan: Plan, machine: Machine) -> str | None:
    if plan.device_kind != "cuda" or machine.gpu_capability is None:
        return None
    names = sorted(set(machine.gpu_names))
    name = names[0] if len(names) == 1 else None
    obstacle = nvml.precision_obstacle(plan.config.precision, name, machine.gpu_capability)
    return None if obstacle is None else f"{obstacle.reason} {obstacle.remedy}"


def _emulated_on_the_cpu(plan: Plan, machine: Machine) -> str | None:
    if plan.device_kind != "cpu" or plan.config.precision != "bf16" or machine.cpu_has_bf16 is not False:
        return None
    return (
        "This CPU has no bf16 arithmetic (AMX, AVX512-BF16): torch emulates bf16, which is slower than "
        "fp32. Choose fp32."
    )


def _compiled_on_the_cpu(plan: Plan, _machine: Machine) -> str | None:
    if plan.device_kind != "cpu" or not plan.config.compile:
        return None
    share = COMPILED_STEP_SHARES.get(plan.model.family)
    measurement = "" if share is None else f" On {MEASURED_ON}, a compiled step of such a model took {share}."
    return f"On a CPU, torch.compile gives little speed-up, and compiling can take minutes.{measurement}"
