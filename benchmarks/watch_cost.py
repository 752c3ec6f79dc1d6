"""Cost of watching a script: processor time of steps with and without the hooks, in alternating blocks.

    torchrun --nproc-per-node 2 -m benchmarks.watch_cost --width 256 --blocks 300 --steps 20

Blocks of one process are compared, because pairs of processes differ by several percent. The training
thread's time is that of the hooks. That of the recorder's thread, with its wake-ups in all blocks, is added
for each watched step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.data import dataloader as loaders

from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.watch import hooks
from trainers.watch.settings import Settings

PLACES: tuple[tuple[Any, str], ...] = (
    (torch.autograd, "backward"),
    (torch.Tensor, "item"),
    (loaders._BaseDataLoaderIter, "__next__"),  # noqa: SLF001
    (DataLoader, "__iter__"),
    (DistributedSampler, "__iter__"),
    (DistributedSampler, "set_epoch"),
    (nn.Module, "train"),
)


class Switch:
    """Turns the hooks of `trainers.watch` on and off."""

    def __init__(self, run_dir: Path) -> None:
        before = [getattr(owner, name) for owner, name in PLACES]
        self.recorder = hooks.install(Settings(run_dir=run_dir, code_dir=Path.cwd()))
        self._values = [before, [getattr(owner, name) for owner, name in PLACES]]
        self._hooks: list[tuple[Any, dict[int, Any]]] = [
            (hooks_of_torch, dict(hooks_of_torch))
            for hooks_of_torch in (
                optimizers._global_optimizer_pre_hooks,  # noqa: SLF001
                optimizers._global_optimizer_post_hooks,  # noqa: SLF001
            )
        ]

    def set(self, *, is_on: bool) -> None:
        """Turn the hooks on or off."""
        for (owner, name), value in zip(PLACES, self._values[is_on], strict=True):
            setattr(owner, name, value)
        for now, ours in self._hooks:
            now.clear()
            now.update(ours if is_on else {})


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of repeated passes."""
    while True:
        yield from loader


def main() -> None:
    """Measure, and print the cost of a step on each rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    run_dir = Path(tempfile.gettempdir()) / f"watch-cost-{os.environ['TORCHELASTIC_RUN_ID']}-{os.getppid()}"
    if rank == 0:
        rundir.make(rundir.RunDirectory(run_dir), Config(script="watch_cost.py", nproc_per_node=2))
    while not (run_dir / "config.json").exists():
        time.sleep(0.05)
    switch = Switch(run_dir)
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(16384, options.width), torch.randint(0, 10, (16384,)))
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
    network = nn.Sequential(nn.Linear(options.width, options.width), nn.ReLU(), nn.Linear(options.width, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    costs: dict[bool, list[float]] = {False: [], True: []}
    wall: dict[bool, list[float]] = {False: [], True: []}
    batches = endless(loader)  # one iterator, because the beginning of a pass is watched too
    for block in range(2 * options.blocks):
        is_on = block % 2 == 0
        switch.set(is_on=is_on)
        began, began_wall = time.thread_time(), time.perf_counter()
        for inputs, targets in itertools.islice(batches, options.steps):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if block >= 4:
            costs[is_on].append((time.thread_time() - began) / options.steps)
            wall[is_on].append((time.perf_counter() - began_wall) / options.steps)
    pairs = [(on - off) * 1e6 for on, off in zip(costs[True], costs[False], strict=True)]
    of_thread = time.clock_gettime(time.pthread_getcpuclockid(switch.recorder._thread.ident))  # noqa: SLF001
    thread = of_thread / (options.blocks * options.steps) * 1e6
    off = statistics.median(costs[False]) * 1e6
    extra, error = statistics.median(pairs), 1.25 * statistics.stdev(pairs) / len(pairs) ** 0.5
    print(
        f"rank {rank}: step {off:.0f} us of processor time ({statistics.median(wall[False]) * 1e3:.2f} ms), "
        f"watching {extra:+.1f} us (median, error {error:.1f}) in hooks, {thread:+.1f} us in its thread, "
        f"{100 * (extra + thread) / off:+.2f}%",
        flush=True,
    )
    switch.set(is_on=True)
    switch.recorder.end(1)
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
