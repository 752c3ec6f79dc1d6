"""An optimal bare loop of a case's model: compiled with its loss, bf16, fused AdamW, data on the device.

    python -m benchmarks.gpu.bare --case gpt --data PATH --batch-size 64 --out FILE

Uses nothing of this project's loop: no DDP, no reports, and no synchronization with the device between the
first and the last measured step.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu import cases
from benchmarks.gpu.cases import Case
from trainers import registry
from trainers.data.dataset import IMAGE_CLASSIFICATION
from trainers.optimisation.objective import Objective
from trainers.registry import ModelOptions

LEAST_STEPS = 5


def main() -> None:
    """Train and write the measurements."""
    parser = argparse.ArgumentParser(description="The best bare loop of a case's model.")
    parser.add_argument("--case", choices=cases.CASES, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile-mode", help="of torch.compile; left out: not compiled")
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    case = (cases.TINY_CASES if options.tiny else cases.CASES)[options.case]
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    step = step_of(case, options.data, options.batch_size, device, options.compile_mode)
    _timed(step, options.warm_up, device)
    step_s = _timed(step, LEAST_STEPS, device)
    num_steps = max(LEAST_STEPS, math.ceil(options.seconds / step_s))
    step_s = _timed(step, num_steps, device)
    found = {
        "samples_per_s": options.batch_size / step_s,
        "num_steps": num_steps,
        "last_loss": step().item(),
        "device_name": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
    }
    options.out.write_text(json.dumps(found))


def step_of(
    case: Case, data: Path, batch_size: int, device: torch.device, compile_mode: str | None
) -> Callable[[], Tensor]:
    """Return a function that trains one step and returns its loss, on the device."""
    torch.manual_seed(0)
    dataset = case.dataset(data)
    spec = dataset.spec()
    split, _ = dataset.load(device)
    is_image = spec.task == IMAGE_CLASSIFICATION
    layout = torch.channels_last if is_image else torch.contiguous_format
    entry = registry.models()[case.model]
    network = entry.build(spec, ModelOptions(size=case.model_size)).to(device)
    network.to(memory_format=layout)  # type: ignore[call-overload]
    objective = Objective(spec)

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return objective.training_loss(network(inputs), targets)

    compiled = loss_of if compile_mode is None else torch.compile(loss_of, mode=compile_mode)
    optimizer = torch.optim.AdamW(network.parameters(), lr=cases.LEARNING_RATE, fused=True)

    def step() -> Tensor:
        indices = torch.randint(len(split), (batch_size,), device=device)
        inputs, targets = split.batch(indices)
        inputs = split.prepare(inputs)
        if is_image:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = compiled(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _timed(step: Callable[[], Tensor], num_steps: int, device: torch.device) -> float:
    """Return the seconds per step, averaged over this number of steps."""
    _wait_for(device)
    began = time.perf_counter()
    for _ in range(num_steps):
        step()
    _wait_for(device)
    return (time.perf_counter() - began) / num_steps


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
