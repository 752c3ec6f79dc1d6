"""Code shared by the rivals: the catalogue's data sample by sample, its model, and the record of steps.

The samples are in memory and are transformed one by one, as `ToTensor` and `Normalize` do in tutorials, but
without decoding picture files: that is to the rivals' advantage.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainers import registry
from trainers.data.dataset import DataOptions, DataSpec, ImageSplit, Split
from trainers.optimisation.objective import Objective
from trainers.registry import ModelOptions


def options() -> argparse.Namespace:
    """Return the rival's command line options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--model-size", default="")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="where rank 0 writes what it noted")
    return parser.parse_args()


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A split as in tutorials: one sample per index, transformed on access."""

    def __init__(self, split: Split) -> None:
        self._inputs, self._targets = split.batch(torch.arange(len(split)))
        self._is_image = isinstance(split, ImageSplit)
        self._preparation = split.prepare

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = self._inputs[index]
        return self._preparation(inputs) if self._is_image else inputs, self._targets[index]


def load(chosen: argparse.Namespace) -> tuple[Samples, DataSpec]:
    """Return the training samples and their description."""
    registry.discover_all()
    dataset = registry.datasets()[chosen.dataset].create(DataOptions())
    train, _ = dataset.load(torch.device("cpu"))
    return Samples(train), dataset.spec()


def build(chosen: argparse.Namespace, spec: DataSpec) -> nn.Module:
    """Return the catalogue's network, with weights from torch's generator."""
    entry = registry.models()[chosen.model]
    return entry.build(spec, ModelOptions(size=chosen.model_size or entry.default_size))


def criterion(spec: DataSpec) -> Objective:
    """Return the loss of the task."""
    return Objective(spec)


class Notes:
    """The end time of each step and this rank's loss. Losses are processed only at the end."""

    def __init__(self, out: Path, num_steps: int) -> None:
        self._out = out
        self._num_steps = num_steps
        self._ended_unix_s: list[float] = []
        self._losses: list[Tensor] = []

    def step(self, loss: Tensor) -> bool:
        """Record a step. Return True if it was the last."""
        self._ended_unix_s.append(time.time())
        self._losses.append(loss.detach())
        return len(self._losses) >= self._num_steps

    def write(self) -> None:
        """Average the losses over the ranks and write the record. Every rank must call it."""
        losses = torch.stack(self._losses).double()
        dist.all_reduce(losses)
        if dist.get_rank() == 0:
            noted = {
                "losses": (losses / dist.get_world_size()).tolist(),
                "step_ended_unix_s": self._ended_unix_s,
            }
            self._out.write_text(json.dumps(noted))
