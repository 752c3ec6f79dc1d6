"""Prints as JSON which GPUs of this machine training can use, or why it can use none.

    python -m trainers.parallel.usable_gpus

The driver lists GPUs that torch may not support. The page never imports torch, so it starts this
short-lived process, which opens no CUDA context.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainers.machine import nvml
from trainers.parallel import devices


def describe() -> dict[str, Any]:
    """Return the usable GPUs' UUIDs in CUDA's order, the unusable GPUs, and why none is usable."""
    obstacle = devices.find_obstacle(num_ranks=1)
    uuids: list[str] = []
    left_out: list[str] = []
    for index in range(0 if obstacle is not None else torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        if devices.is_covered((properties.major, properties.minor), torch.cuda.get_arch_list()):
            uuids.append(nvml.named(str(getattr(properties, "uuid", ""))))
        else:
            capability = f"{properties.major}.{properties.minor}"
            left_out.append(f"{properties.name} (compute capability {capability})")
    return {
        "uuids": uuids,
        "left_out": left_out,
        "obstacle": None if obstacle is None else asdict(obstacle),
        # The page runs this program again when another version of torch is installed.
        "watched_paths": [str(Path(torch.__file__).with_name("version.py"))],
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
