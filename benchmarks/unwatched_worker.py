"""Started by torchrun from `benchmarks/watching`: the usual worker, with all that watches it left out.

No event is written, no rank is sampled, no step is timed, no loss is averaged over the ranks. Rank 0 notes
when some of its steps ended and leaves that in the run's directory.
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
from trainers.report.meter import StepMeter
from trainers.report.observer import Fingerprints, NullFingerprints, NullObserver, Observer
from trainers.report.reporter import NullReporter
from trainers.report.telemetry import Telemetry

NOTE_EVERY = 25
MOMENTS = "moments.json"
WARM_UP_SHARE = 0.25


class SilentMeter(StepMeter):
    """Notes the time now and then, and reports nothing."""

    # Step, time and processor time, oldest first; a process is one rank of one run.
    moments: list[tuple[int, float, float]] = []  # noqa: RUF012

    def is_report_due(self) -> bool:
        """Never."""
        return False

    def add_loss(self, share: Tensor) -> None:
        """It is reported to nobody."""

    def step_done(self, *, step: int, **others: Any) -> Command | None:  # noqa: ARG002
        """Note when a step ended, now and then."""
        if step % NOTE_EVERY == 0:
            self.moments.append((step, time.time(), time.process_time()))
        return None

    def flush(self) -> None:
        """There is nothing to report."""

    def report(self) -> Command | None:
        """There is nothing to report, and nobody to ask for anything."""
        return None


def cpu_ms_per_step(moments: Sequence[tuple[int, float, float]]) -> float:
    """Return the milliseconds of processor time that a step took after the first quarter of the run."""
    counted = [moment for moment in moments if moment[0] >= WARM_UP_SHARE * moments[-1][0]]
    (first, _, before_s), (last, _, after_s) = counted[0], counted[-1]
    return 1000 * (after_s - before_s) / (last - first)


def main() -> None:
    """Train, and leave the moments behind."""

    def nobody(*_: Any, **__: Any) -> NullReporter:
        return NullReporter()

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
