"""What the bookkeeping of a step costs rank 0's training thread, in Python, beside the training itself.

    python -m benchmarks.step_cost [--seconds 10] [--step-ms 3]

The loop's own calls in the loop's own order (observer, meter, command agreement, reporter),
with multiplications of matrices of about so many milliseconds in place of the forward and backward pass.
Counted is the thread's own processor time outside of that work, divided by the steps. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.machine import Conditions
from trainers.contract.rundir import RunDirectory
from trainers.parallel.process_group import World
from trainers.report.meter import StepMeter
from trainers.report.observer import Observer
from trainers.report.reporter import Reporter
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import Pulse


class Alone(World):
    """A world of one rank, without a process group."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over one rank."""
        return values


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-ms", type=float, default=3.0)
    options = parser.parse_args()
    conditions = Conditions.note()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.seconds, work_of(options.step_ms / 1000))
    print(json.dumps({"step_ms": options.step_ms, **found, **conditions.report()}, indent=2))


def work_of(seconds: float) -> Callable[[], None]:
    """Return work of about so long, in pieces as a network has layers."""
    left, right = torch.randn(2, 64, 64)

    def pieces(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right)

    pieces(1000)
    began = time.thread_time()
    pieces(1000)
    count = max(1, round(1000 * seconds / (time.thread_time() - began)))
    return lambda: pieces(count)


def measure(folder: Path, seconds: float, work: Callable[[], None]) -> dict[str, float | int]:
    """Go through steps for so long; return how many, and the microseconds each cost beside its work."""
    world = Alone(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"))
    run = RunDirectory(folder)
    reporter = Reporter(run)
    meter = StepMeter(world, reporter)
    observer = Observer(StepClock(torch.nn.Linear(1, 1), world.device, measures_wait=True), Pulse())
    loss, step, spent_s = torch.zeros(()), 0, 0.0
    until = time.monotonic() + seconds
    observer.begin_step(is_reported=True, is_first_of_epoch=True)
    began = time.thread_time()
    while time.monotonic() < until:
        observer.data_fetched()
        observer.forward_done()
        spent_s += time.thread_time() - began
        work()
        began = time.thread_time()
        meter.add_loss(loss)
        observer.backward_done(is_last=True)
        meter.is_report_due()
        meter.note_gradients(None)
        observer.optimizer_done()
        meter.settle()
        step += 1
        observer.end_step(step)
        meter.step_done(
            step=step,
            epoch=0,
            lr=0.001,
            num_global=128,
            step_time_s=observer.step_time_s,
            data_time_s=observer.data_time_s,
        )
        observer.begin_step(is_reported=meter.is_report_due())
    reporter.close()
    return {"steps": step, "us_a_step": round(1e6 * spent_s / step, 2)}


if __name__ == "__main__":
    main()
