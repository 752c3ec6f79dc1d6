"""The usual worker without any watching, started by torchrun from `benchmarks/watching`.

It writes no events, samples no telemetry, times no steps and averages no losses over the ranks. Rank 0
records the end times of some steps in the run's directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainers import build, worker
from trainers.contract.commands import Command
from trainers.report import reporter
from trainers.report.observer import Fingerprints, NullFingerprints, NullObserver, Observer
from trainers.report.step_meter import StepMeter
from trainers.report.telemetry import Telemetry

NOTE_EVERY = 25
MOMENTS = "moments.json"
WARM_UP_SHARE = 0.25


class SilentMeter(StepMeter):
    """Records the time at intervals, and reports nothing."""

    # Step, time and processor time, in order. Shared by the class, because a process is one rank of one run.
    moments: list[tuple[int, float, float]] = []  # noqa: RUF012

    def is_report_due(self) -> bool:
        """Return False."""
        return False

    def add_loss(self, share: Tensor) -> None:
        """Ignore the loss."""

    def step_done(self, *, step: int, **others: Any) -> Command | None:  # noqa: ARG002
        """Record the end time of every NOTE_EVERY-th step."""
        if step % NOTE_EVERY == 0:
            self.moments.append((step, time.time(), time.process_time()))
        return None

    def flush(self) -> None:
        """Do nothing."""

    def report(self) -> Command | None:
        """Report nothing and receive no command."""
        return None


def cpu_ms_per_step(moments: Sequence[tuple[int, float, float]]) -> float:
    """Return the milliseconds of processor time per step after the first quarter of the run."""
    counted = [moment for moment in moments if moment[0] >= WARM_UP_SHARE * moments[-1][0]]
    (first, _, before_s), (last, _, after_s) = counted[0], counted[-1]
    return 1000 * (after_s - before_s) / (last - first)


def main() -> None:
    """Train, and write the recorded times."""

    def nobody(*_: Any, **__: Any) -> reporter.NullReporter:
        return reporter.NullReporter()

    def nothing(self: Telemetry) -> None:
        pass

    reporter.create = nobody
    Observer.of = lambda *_: NullObserver()  # type: ignore[method-assign,assignment]
    Fingerprints.of = lambda *_: NullFingerprints()  # type: ignore[method-assign]
    build.StepMeter = SilentMeter  # type: ignore[attr-defined]
    Telemetry.start = nothing  # type: ignore[method-assign]
    Telemetry.stop = nothing  # type: ignore[method-assign]
    exit_code = worker.main()
    if os.environ["RANK"] == "0":
        run_dir = Path(sys.argv[1])
        (run_dir / MOMENTS).write_text(json.dumps(SilentMeter.moments))
    worker.end(exit_code)


if __name__ == "__main__":
    main()
