"""What the bookkeeping of a step costs rank 0's training thread, in Python, beside the training itself.

    python -m benchmarks.step_cost [--seconds 10] [--step-ms 3]

The loop's own calls in the loop's own order (clock, heartbeats, pulse, meter, command agreement, reporter),
with a multiplication of matrices of about so many milliseconds in place of the forward and backward pass. The
thread's own processor time is divided by the steps; what the same steps cost without any of it is taken off.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from trainers import heartbeat
from trainers.contract.heartbeats import COMPUTING, FETCHING, STEPPING
from trainers.contract.rundir import RunDirectory
from trainers.distributed import World
from trainers.meter import StepMeter
from trainers.reporter import Reporter
from trainers.step_clock import StepClock
from trainers.telemetry import Pulse


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
    torch.set_num_threads(1)
    plain = steps_alone(options.seconds, options.step_ms / 1000)
    with tempfile.TemporaryDirectory() as folder:
        kept = steps_with_books(Path(folder), options.seconds, options.step_ms / 1000)
    print(
        json.dumps(
            {
                "step_ms": options.step_ms,
                "us_a_step": round(kept - plain, 2),
                "us_a_step_of_the_sleep": round(plain, 2),
            },
            indent=2,
        )
    )


def steps_alone(seconds: float, step_s: float) -> float:
    """Return the microseconds of this thread that a step costs which only sleeps."""
    return _measured(seconds, lambda: time.sleep(step_s))


def steps_with_books(folder: Path, seconds: float, step_s: float) -> float:
    """Return the same with everything the loop notes of a step."""
    world = Alone(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"))
    run = RunDirectory(folder)
    reporter, pulse = Reporter(run), Pulse()
    meter = StepMeter(world, reporter)
    clock = StepClock(torch.nn.Linear(1, 1), world.device, measures_wait=True)
    loss, step = torch.zeros(()), 0

    def one() -> None:
        nonlocal step
        clock.data_fetched()
        heartbeat.beat(COMPUTING)
        clock.forward_done()
        time.sleep(step_s)
        clock.backward_done()
        heartbeat.beat(STEPPING)
        meter.is_report_due()
        meter.note_gradients(None)
        clock.optimizer_done()
        meter.settle()
        step += 1
        clock.end_step()
        pulse.beat(step, clock.newest)
        meter.step_done(
            loss,
            step=step,
            epoch=0,
            lr=0.001,
            num_global=128,
            step_time_s=clock.step_time_s,
            data_time_s=clock.data_time_s,
        )
        heartbeat.beat(FETCHING)
        clock.begin_step(is_reported=meter.is_report_due(), stood_still_s=0.0)

    clock.begin_step(is_reported=True)
    cost = _measured(seconds, one)
    reporter.close()
    return cost


def _measured(seconds: float, one: Any) -> float:
    until = time.monotonic() + seconds
    began, num_steps = time.thread_time(), 0
    while time.monotonic() < until:
        one()
        num_steps += 1
    return 1e6 * (time.thread_time() - began) / num_steps


if __name__ == "__main__":
    main()
