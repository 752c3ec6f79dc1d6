"""What changes in a run's configuration when it is resumed: other ranks, more epochs."""

from __future__ import annotations

from typing import Any

from ddp_gui.plan.catalogue import Catalogue
from trainers.contract import config as config_module
from trainers.contract import manifests
from trainers.contract.config import Config, ConfigError, Problem
from trainers.contract.rundir import Checkpoint

MOST_MORE_EPOCHS = 100_000
# The others end at a rate that depends on the length of the run.
SCHEDULES_WITHOUT_AN_END = ("constant", "step")


def other_ranks(before: Config, catalogue: Catalogue, num_ranks: Any, global_batch: str) -> dict[str, Any]:
    """Return the fields that change when a run is resumed with another number of ranks.

    Raises:
        ConfigError: when the global batch cannot be kept.
    """
    strategy = catalogue.strategies.get(before.strategy)
    if num_ranks is None or num_ranks == "" or strategy is None:
        return {}
    if global_batch not in ("keep", "rescale"):
        raise ConfigError([Problem(field="global_batch", value=global_batch, allowed="keep or rescale")])
    after = config_module.parse(before.to_json() | {"nproc_per_node": num_ranks})
    if after.world_size == before.world_size:
        return {}
    changes: dict[str, Any] = {"nproc_per_node": after.nproc_per_node}
    if global_batch == "keep":
        num_replicas = before.num_replicas(strategy.ranks_per_replica)
        kept = before.global_batch(num_replicas)
        parts = after.num_replicas(strategy.ranks_per_replica) * after.gradient_accumulation_steps
        if kept % parts:
            allowed = (
                f"a number of ranks among which the global batch of {kept:,} can be shared, "
                "or global_batch rescale, which keeps each rank's batch"
            )
            raise ConfigError([Problem(field="nproc_per_node", value=num_ranks, allowed=allowed)])
        changes["batch_size"] = kept // parts
        if before.scale_lr:
            # The rate goes with the global batch, which stays.
            changes["learning_rate"] = before.peak_learning_rate(num_replicas) / parts
    return changes


def more_epochs(checkpoint: Checkpoint, more: Any, *, stopped_early: bool) -> dict[str, Any]:
    """Return the fields that change when a run trains this many epochs after a checkpoint.

    A limit of the steps gives way to the epochs. A run that early stopping has ended would end again at once:
    there it is switched off.

    Raises:
        ConfigError: when `more` is not a number of epochs.
        ValueError: when the checkpoint cannot be read.
    """
    if isinstance(more, bool) or not isinstance(more, int) or not 1 <= more <= MOST_MORE_EPOCHS:
        allowed = f"a whole number from 1 to {MOST_MORE_EPOCHS:,}"
        raise ConfigError([Problem(field="more_epochs", value=more, allowed=allowed)])
    progress = manifests.read_state(checkpoint)["progress"]
    num_done = int(progress["epoch"]) + (int(progress["samples_in_epoch"]) > 0)
    changes: dict[str, Any] = {"num_epochs": num_done + more, "max_steps": None}
    return changes | ({"early_stopping_patience": None} if stopped_early else {})


def what_more_epochs_are(config: Config, *, num_steps: int | None) -> str:
    """Say whether training on gives what asking for all epochs at first would have given, and why if not.

    Args:
        num_steps: the steps of the whole run, where that is known.
    """
    if config.lr_schedule not in SCHEDULES_WITHOUT_AN_END:
        schedule = config.lr_schedule.replace("_", "-")
        return (
            f"The {schedule} schedule will span all epochs: the learning rate jumps up first, so the result "
            "is not the same as if all epochs had been asked for at first."
        )
    if config.warmup_ratio or (num_steps is not None and config.warmup_steps > num_steps):
        return (
            "The warm-up was that of a shorter run, so the result is not quite the same as if all epochs had "
            "been asked for at first."
        )
    return "The result is exactly as if all epochs had been asked for at first."
