"""Speed on one GPU compared with an optimal bare loop, and the cost of watching and saving.

    python -m benchmarks.gpu [--checks gpt,resnet,watching,waits,checkpoint] [--rounds 7] [--seconds 30]
                             [--gpt-batch N] [--resnet-batch N] [--compile-mode default] [--json FILE]
    python -m benchmarks.gpu --device cpu --tiny     # same code, a few small steps, no verdict

Needs only the requirements of training, not those of the page. Without a GPU it prints that and checks
nothing. The exit code is 1 if a target was missed or a check failed, and 0 without a GPU.

gpt: tokens/s of a GPT with 124 million parameters in bf16, with the largest batch of 1,024 tokens each that
fits. resnet: images/s of a ResNet-50 in bf16 on 128 x 128 images on the device. Both are compared with a bare
loop of the same model, compiled together with its loss, ResNet in channels-last (the job leaves that choice
to torch.compile, which makes the same one). watching: the cost of telemetry, reports and events. waits: calls
with which the host waits for the GPU, from a trace. checkpoint: time for which a checkpoint blocks training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import checks
from benchmarks.gpu.bench import Bench, Effort
from benchmarks.gpu.checks import Found
from benchmarks.gpu.job import Window
from benchmarks.machine import Conditions
from tests.harness import Launcher
from trainers.data.own.cache import CACHE_VARIABLE
from trainers.machine import nvml

CHECKS: Mapping[str, tuple[str, Callable[[Bench], Found]]] = {
    "gpt": ("gpt", checks.speed),
    "resnet": ("resnet", checks.speed),
    "watching": ("gpt", checks.watching),
    "waits": ("gpt", checks.waits),
    "checkpoint": ("gpt", checks.checkpoint),
}
NO_COMPILER = "none"
FAILED = "failed"


def main() -> None:
    """Run the selected checks, print and write the results; or print the reason why nothing is checked."""
    options = _options()
    reason = why_skipped(options.device, torch.cuda.is_available(), nvml.num_gpus())
    if reason is not None:
        print(reason)
        _write(options.json, {"skipped": reason})
        return
    if options.device == "cpu":
        keep_to_one_core()
    conditions = Conditions.note()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE_VARIABLE] = str(Path(folder) / "prepared")
        Path(os.environ[CACHE_VARIABLE]).mkdir()
        benches = _benches(options, Path(folder))
        for name in options.checks:
            case, check = CHECKS[name]
            found[name] = told(check, benches[case])
            print(f"\n{name}: {found[name]['verdict']}\n{json.dumps(found[name], indent=2)}", flush=True)
            report = {"torch": torch.__version__, "is_smoke": options.tiny, "checks": found}
            _write(options.json, report | conditions.report())
    if any(check["verdict"] in ("missed", FAILED) for check in found.values()):
        sys.exit(1)


def told(check: Callable[[Bench], Found], bench: Bench) -> Found:
    """Return the results of a check, or its error, so that a failure does not discard other checks."""
    try:
        return check(bench)
    except (RuntimeError, ValueError, AssertionError, OSError, subprocess.TimeoutExpired) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return {"verdict": FAILED, "error": f"{type(error).__name__}: {error}"}


def why_skipped(device: str, is_there: bool, num_on_machine: int) -> str | None:
    """Return the reason why nothing can be checked, or None."""
    if device != "cuda" or is_there:
        return None
    if num_on_machine:
        return (
            f"no GPU here: this machine has {num_on_machine}, but this torch ({torch.__version__}) sees none"
        )
    return f"no GPU here: torch {torch.__version__} sees none, and neither does the driver"


def keep_to_one_core() -> None:
    """Restrict this process and its children to one core: with such small models, threads mostly wait."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checks", default=",".join(CHECKS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each measurement of speed")
    parser.add_argument(
        "--gpt-batch", type=int, help="in place of the search for the one that fills the card"
    )
    parser.add_argument("--resnet-batch", type=int)
    parser.add_argument(
        "--compile-mode", help="of the bare loop, as torch.compile calls it; none: neither compiles (--tiny)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.checks = options.checks.split(",")
    if unknown := set(options.checks) - set(CHECKS):
        parser.error(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    if options.device == "cpu" and not options.tiny:
        parser.error("on the CPU there is only --tiny: the models are for a GPU")
    return options


def _benches(options: argparse.Namespace, folder: Path) -> dict[str, Bench]:
    launcher = Launcher(folder / "runs")
    effort = _tiny_effort(options) if options.tiny else _effort(options)
    mode = options.compile_mode or (NO_COMPILER if options.tiny else "default")
    return {
        name: Bench(
            name=name,
            device=options.device,
            is_tiny=options.tiny,
            compile_mode=None if mode == NO_COMPILER else mode,
            wanted_batch=batch,
            effort=effort,
            folder=folder,
            launcher=launcher,
        )
        for name, batch in (("gpt", options.gpt_batch), ("resnet", options.resnet_batch))
    }


def _effort(options: argparse.Namespace) -> Effort:
    return Effort(
        rounds=options.rounds or 7,
        window=Window(warm_up=20, seconds=options.seconds or 30.0, waits_for_sample=True),
        traced_warm_up=200,
        traced_steps=60,
        block_s=6.0,
    )


def _tiny_effort(options: argparse.Namespace) -> Effort:
    return Effort(
        rounds=options.rounds or 1,
        window=Window(warm_up=2, seconds=options.seconds or 0.3, waits_for_sample=False),
        traced_warm_up=5,
        traced_steps=5,
        block_s=0.2,
    )


def _write(path: Path | None, report: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
