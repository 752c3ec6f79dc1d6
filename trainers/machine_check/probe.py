"""What torch says of this machine, as one line of JSON; run in a process of its own.

    python -m trainers.machine_check.probe

It opens a context on the first GPU that it may see, so it is told to see only those that nobody uses.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from trainers import catalog, registry
from trainers.contract.library_words import in_words
from trainers.data import DataOptions

# A small network for each strategy: the first one that it can train.
CANDIDATES = (("digits", "vit"), ("austen", "gpt"))


def describe() -> dict[str, Any]:
    """Return torch's version, what it makes of the GPUs, and the strategies with what each can train."""
    return {"torch": torch.__version__, "cuda": torch.version.cuda, **_gpus(), "strategies": _strategies()}


def _gpus() -> dict[str, Any]:
    """Say whether CUDA can be used, why not, and which cards the wheel was not built for."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return {
            "is_usable": False,
            "why_not": in_words(error).partition("\n")[0],
            "arch_list": [],
            "gpus": [],
        }
    gpus = [
        {"name": torch.cuda.get_device_name(index), "capability": torch.cuda.get_device_capability(index)}
        for index in range(torch.cuda.device_count())
    ]
    return {"is_usable": bool(gpus), "why_not": None, "arch_list": torch.cuda.get_arch_list(), "gpus": gpus}


def _strategies() -> list[dict[str, Any]]:
    for package in ("trainers.models", "trainers.datasets", "trainers.strategies"):
        registry.discover(package)
    networks = [(dataset, model, _network(dataset, model)) for dataset, model in CANDIDATES]
    found = []
    for strategy in catalog.ordered_strategies():
        fitting = [
            (dataset, model) for dataset, model, network in networks if strategy.why_not(network) is None
        ]
        found.append(
            {
                "name": strategy.name,
                "label": strategy.label,
                "ranks_per_replica": strategy.ranks_per_replica,
                "trains": fitting[0] if fitting else None,
            }
        )
    return found


def _network(dataset: str, model: str) -> torch.nn.Module:
    entry = registry.models()[model]
    spec = registry.datasets()[dataset].create(DataOptions()).spec()
    return catalog.on_meta(entry, spec, entry.default_size)


if __name__ == "__main__":
    json.dump(describe(), sys.stdout)
