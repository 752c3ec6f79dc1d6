"""Configurations of a check's jobs: one small network and the same global batch for all strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainers.check_machine.checks.devices import Devices
from trainers.contract import config as config_module
from trainers.contract.config import Config, RanksPerReplica

DATASET, MODEL = "digits", "vit"
BATCH_PER_RANK = 4
NEVER = 10**9
_USUAL = {
    "num_epochs": 100_000,
    "seed": 0,
    # Bit-identical results, also on GPUs.
    "deterministic": True,
    "eval_every_steps": NEVER,
    "checkpoint_every_steps": NEVER,
    "keep_best_checkpoint": False,
}

Strategy = Mapping[str, Any]


def ddp_config(devices: Devices, *, max_steps: int | None = None) -> Config:
    """Return the configuration of the DDP jobs."""
    values = {"dataset": DATASET, "model": MODEL, "batch_size": BATCH_PER_RANK, "max_steps": max_steps}
    return config_module.parse(
        _USUAL | values | {"nproc_per_node": devices.num_ranks, "device": devices.kind}
    )


def strategy_config(strategy: Strategy, devices: Devices, num_ranks: int) -> Config:
    """Return the configuration of a strategy's job, with the same global batch as DDP.

    Args:
        strategy: As reported by the probe, with the network that it can train.
    """
    dataset, model = strategy["trains"]
    config = config_module.parse(
        _USUAL
        | {
            "dataset": dataset,
            "model": model,
            "strategy": strategy["name"],
            "nproc_per_node": num_ranks,
            "device": devices.kind,
        }
    )
    num_replicas = config.num_replicas(strategy["ranks_per_replica"])
    global_batch = ddp_config(devices).global_batch(devices.num_ranks)
    return config_module.parse(config.to_json() | {"batch_size": max(1, global_batch // num_replicas)})


def ranks_for(sharing: RanksPerReplica, num_devices: int) -> int | None:
    """Return the number of ranks for a strategy; None if there are too few devices.

    If ranks share one copy of the model, two ranks are enough, and any model can be split in two.
    """
    if sharing == "one":
        return num_devices
    if num_devices < 2:
        return None
    return 4 if sharing != "all" and num_devices >= 4 else 2


def can_compare(strategy: Strategy) -> bool:
    """True if a strategy trains the same network as the DDP jobs."""
    return tuple(strategy["trains"]) == (DATASET, MODEL)
