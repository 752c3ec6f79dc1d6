"""What was told of memory against what real runs took, on one CPU rank.

    python -m benchmarks.memory [--steps 12]

Told: weights and gradients (4 bytes a weight each), AdamW's two numbers, and per sample what
`python -m trainers.plugins.memory` says. Taken: the peak of the rank's resident memory above what it held
before its model was built; that also has the code of the kernels, their workspaces and the gradients of
activations.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from tests.harness import Launcher
from trainers.plugins import memory

BYTES_PER_WEIGHT = 4 + 4 + 8  # itself, its gradient, AdamW's two numbers
NEVER = 10**9
CASES: tuple[tuple[str, str, str, int], ...] = (
    ("cnn", "small", "fashion_mnist", 64),
    ("cnn", "small", "fashion_mnist", 2048),
    ("cnn", "large", "fashion_mnist", 512),
    ("resnet", "slim", "fashion_mnist", 512),
    ("resnet", "18", "digits", 128),
    ("gpt", "small", "austen", 64),
    ("gpt", "small", "austen", 256),
    ("gpt", "medium", "austen", 32),
    ("vit", "small", "digits", 64),
    ("bert", "medium", "austen_novels", 64),
)


def main() -> None:
    """Train each case for some steps and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    told = memory.describe()["models"]
    print("| model | batch | weights MB | activations MB | told MB | taken MB | taken / told |")
    print(f"|{'---|' * 7}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        for model, size, dataset, batch_size in CASES:
            num_parameters, taken = measure(launcher, model, size, dataset, batch_size, options.steps)
            weights = BYTES_PER_WEIGHT * num_parameters
            activations = batch_size * told[model][size][dataset]["activation_bytes_per_sample"]
            numbers = [n / 1e6 for n in (weights, activations, weights + activations, taken)]
            cells = " | ".join(f"{n:.1f}" for n in numbers)
            print(
                f"| {model} {size}, {dataset} | {batch_size} | {cells} | {numbers[3] / numbers[2]:.2f} |",
                flush=True,
            )
        launcher.close()


def measure(
    launcher: Launcher, model: str, size: str, dataset: str, batch_size: int, num_steps: int
) -> tuple[int, int]:
    """Train a case on one rank; return its parameters and the growth of its memory in bytes."""
    config: dict[str, Any] = {
        "model": model,
        "model_size": size,
        "dataset": dataset,
        "batch_size": batch_size,
        "nproc_per_node": 1,
        "max_steps": NEVER,
        "num_epochs": NEVER // 10**5,
        "eval_every_steps": NEVER,
        "checkpoint_every_steps": NEVER,
    }
    live = launcher.start(**config)
    live.wait_for("ranks", lambda event: event["ranks"][0]["step"] >= num_steps, timeout_s=300.0)
    rank = live.events("ranks")[-1]["ranks"][0]
    live.run.append_command("stop", save=False)
    status = live.wait_for_end()
    if status.state != "stopped":
        raise RuntimeError(live.story())
    (plan,) = live.events("plan")
    return plan["num_parameters"], rank["peak_memory_bytes"] - rank["base_memory_bytes"]


if __name__ == "__main__":
    main()
