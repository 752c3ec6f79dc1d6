"""Cost of a step besides GPU time: kernel launches, bytes, peak memory and host time, by model.

    python -m benchmarks.gpu.counts [--models mlp,gpt] [--steps 400] [--json FILE]

Each model of the catalogue is trained on one GPU, compiled, by this project's job and by a bare compiled loop
with the same data, parameter groups and precision. Counts are exact on any GPU, also on a paper GPU (which
counts launches itself; elsewhere torch's profiler does). Host time is the processor time of the training
thread and of autograd's thread; blocks of both loops alternate in one process. A paper GPU needs
PAPER_COMPUTE=0 (docs/paper-gpu.md):

    python -m tests.paper_gpu H100x1 PAPER_COMPUTE=0 -- python -m benchmarks.gpu.counts

Per step: launches are kernels and library calls submitted to the GPU; bytes are those allocated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers import build, registry
from trainers.contract import config as config_module
from trainers.optimisation import optimizers
from trainers.optimisation.objective import Objective
from trainers.parallel.precision import Precision
from trainers.registry import ModelOptions

# A data set for each model, from this checkout.
CASES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"dataset": "digits"},
    "mlp": {"dataset": "digits"},
    "tabular_mlp": {"dataset": "breast_cancer"},
    "cnn": {"dataset": "digits"},
    "resnet": {"dataset": "digits"},
    "vit": {"dataset": "digits"},
    "bag_of_words": {"dataset": "austen_novels"},
    "gru": {"dataset": "austen_novels"},
    "bert": {"dataset": "austen_novels"},
    "gpt": {"dataset": "austen"},
    "gpt_moe": {"dataset": "austen"},
}
BATCH_SIZE = 16
NEVER = 10**9
WARM_UP = 120
NUM_BLOCKS = 8
PROFILED_STEPS = 10
BARE = "bare"
TARGETS = {"launches": 1.02, "host_us": 1.0, "peak_bytes": 1.05}


def config_of(model: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's configuration, without evaluations and checkpoints during training."""
    return {
        "model": model,
        "batch_size": BATCH_SIZE,
        "precision": "bf16",
        "compile": True,
        "device": "cuda",
        "nproc_per_node": 1,
        "num_epochs": 100_000,
        "eval_every_steps": NEVER,
        "checkpoint_every_steps": NEVER,
        "keep_best_checkpoint": False,
        **CASES[model],
        **more,
    }


class StepCounter:
    """Counts the cost of steps, block by block. Call `go_on` before each step until `found` is set.

    Each count is that of the cheapest block: one without the end of an epoch, a report or a compilation.
    """

    def __init__(self, num_steps: int) -> None:
        self._block = max(1, num_steps // NUM_BLOCKS)
        self._profiler: torch.profiler.profile | None = None
        self._step = 0
        self._before: dict[str, int] = {}
        self._blocks: list[dict[str, float]] = []
        self.found: dict[str, float] | None = None

    @property
    def is_between_blocks(self) -> bool:
        """True if the next call of `go_on` ends a block or begins one."""
        return (self._step - WARM_UP) % self._block == 0

    def go_on(self) -> None:
        """Mark the boundary between two steps."""
        step = self._step - WARM_UP
        self._step += 1
        if step < 0 or self.found is not None:
            return
        if step % self._block == 0 and len(self._blocks) < NUM_BLOCKS:
            if step > 0:
                spent = {name: value - self._before[name] for name, value in _totals().items()}
                block = {name: value / self._block for name, value in spent.items()}
                self._blocks.append({**block, "peak_bytes": torch.cuda.max_memory_allocated()})
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = _totals()
        if len(self._blocks) < NUM_BLOCKS:
            return
        if _paper_launches() is None and self._profiler is None:
            self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profiler.start()
        if self._profiler is None or step - NUM_BLOCKS * self._block == PROFILED_STEPS:
            self.found = self._summary()

    def _summary(self) -> dict[str, float]:
        found = {name: min(block[name] for block in self._blocks) for name in self._blocks[0]}
        if self._profiler is not None:
            self._profiler.stop()
            names = [event.name for event in self._profiler.events() or []]
            found["launches"] = sum("LaunchKernel" in name for name in names) / PROFILED_STEPS
        return {name: round(value, 2) for name, value in found.items()}


def _totals() -> dict[str, int]:
    return {
        "launches": _paper_launches() or 0,
        "bytes": torch.cuda.memory_stats()["allocated_bytes.all.allocated"],
    }


def _paper_launches() -> int | None:
    """Return the number of launches so far if this process has paper GPUs, else None."""
    if not os.environ.get("PAPER_GPU"):
        return None
    import paper_gpu  # only importable there

    return int(paper_gpu.counts()["launches"])


def host_ns() -> int:
    """Return the processor time of this thread and of autograd's, in nanoseconds."""
    spent = 0
    for task in Path("/proc/self/task").iterdir():
        is_autograd = (task / "comm").read_text().startswith("pt_autograd")
        if is_autograd or int(task.name) == threading.get_native_id():
            spent += int((task / "schedstat").read_text().split()[0])
    return spent


def count_bare(values: Mapping[str, Any], num_steps: int) -> dict[str, float]:
    """Count the steps of a bare loop: only the data and the model are from this project."""
    config = config_module.parse(dict(values))
    registry.discover_all()
    counter, step = StepCounter(num_steps), bare_step(config, torch.device("cuda", 0))
    while counter.found is None:
        counter.go_on()
        step()
    return counter.found


def bare_step(config: config_module.Config, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that trains one step, compiled with its loss, and returns the loss on the device."""
    torch.manual_seed(0)
    entry = registry.models()[config.model]
    options = ModelOptions(size=config.model_size)
    dataset = build.create_dataset(config, entry, options)
    spec = dataset.spec()
    split, _validation = dataset.load(device)
    network = build.build_network(entry, spec, options).to(device)
    objective, precision = Objective(spec), Precision(config.precision, device)
    if any(isinstance(module, torch.nn.Conv2d) for module in network.modules()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return objective.training_loss(network(inputs), targets)

    compiled = torch.compile(loss_of) if config.compile else loss_of
    groups = optimizers.parameter_groups(network, config.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)

    def step() -> Tensor:
        indices = torch.randint(len(split), (config.batch_size,), device=device)
        inputs, targets = split.batch(indices)
        inputs = split.prepare(inputs)
        with precision.autocast():
            loss = compiled(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def count_job(values: Mapping[str, Any], num_steps: int, folder: Path) -> dict[str, float]:
    """Count the steps of this project's job in a rank started by torchrun; see `probes.counts`."""
    from benchmarks.gpu import job

    return dict(job.run_probe(folder, dict(values), "counts", num_steps=num_steps))


def main() -> None:
    """Count each model both ways, print the table, write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--with", dest="more", type=json.loads, default={}, help="more configuration, JSON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only-bare", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_bare is not None:
        print(json.dumps(count_bare(config_of(options.only_bare, options.more), options.steps)))
        return
    if not torch.cuda.is_available():
        print("no GPU here, and no paper GPU")
        return
    found: dict[str, Any] = {}
    for model in options.models.split(","):
        arguments = ["--only-bare", model, "--steps", str(options.steps), "--with", json.dumps(options.more)]
        command = [sys.executable, "-m", "benchmarks.gpu.counts", *arguments]
        bare = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            if bare.returncode:
                raise RuntimeError(bare.stderr[-2000:])
            with tempfile.TemporaryDirectory() as folder:
                ours = count_job(config_of(model, options.more), options.steps, Path(folder))
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            found[model] = {"error": str(error)}
            print(f"{model}: {error}", file=sys.stderr, flush=True)
            continue
        counted = json.loads(bare.stdout.splitlines()[-1])
        found[model] = {BARE: counted | {"host_us": ours.pop("bare_host_us")}, "ours": ours}
        print(row(model, found[model]), flush=True)
        if options.json is not None:
            options.json.write_text(
                json.dumps({"torch": torch.__version__, "models": found}, indent=2) + "\n"
            )


def row(model: str, counts: Mapping[str, Mapping[str, float]]) -> str:
    """Return a line of the table: bare, ours, their ratio, and the missed targets."""
    cells, missed = [], []
    for name in ("launches", "host_us", "bytes", "peak_bytes"):
        bare, ours = counts[BARE][name], counts["ours"][name]
        ratio = counts["ours"]["host_ratio"] if name == "host_us" else ours / bare if bare else float("nan")
        cells.append(f"{name} {bare:,} / {ours:,} ({ratio:.3f})")
        if ratio > TARGETS.get(name, float("inf")):
            missed.append(name)
    return f"{model}: {'; '.join(cells)}{'; missed: ' + ', '.join(missed) if missed else ''}"


if __name__ == "__main__":
    main()
