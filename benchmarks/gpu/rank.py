"""Started by torchrun in place of trainers.worker where a check looks into the rank: the same job.

When the look is over the rank writes what it found, and asks its own run to stop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu import looks
from benchmarks.gpu.looks import Notes
from trainers import build, loop, worker
from trainers.contract.rundir import RunDirectory
from trainers.job import Job
from trainers.report import telemetry

# Name of the look, its settings, and where its notes go: JSON in the environment, as torchrun hands it on.
LOOK = "GPU_BENCHMARK_LOOK"
OUT_OF_MEMORY = "out_of_memory"


def main() -> None:
    """Train as the worker does, and look."""
    chosen: dict[str, Any] = json.loads(os.environ[LOOK])
    out, look = Path(chosen["out"]), looks.LOOKS[chosen["look"]]
    train, run_rank = loop.train, worker.run_rank

    def train_looked_at(job: Job) -> None:
        def done(notes: Notes) -> None:
            out.write_text(json.dumps(notes))
            RunDirectory(Path(sys.argv[1])).append_command("stop", save=False)

        job.loader = looks.LookedAtLoader(job.loader, looks.stepped(look(job, **chosen["settings"]), done))
        train(job)

    def run_and_tell(run: RunDirectory, resume_step: int | None) -> Literal["done"]:
        try:
            return run_rank(run, resume_step)
        except RuntimeError as error:
            if is_out_of_memory(error):
                out.write_text(json.dumps({OUT_OF_MEMORY: True}))
            raise

    loop.train = train_looked_at
    worker.run_rank = run_and_tell
    build.StepMeter = looks.SwitchedMeter  # type: ignore[attr-defined]
    telemetry.Telemetry = looks.NewestTelemetry  # type: ignore[misc]
    worker.end(worker.main())


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error says so, by its kind or, where a library of the GPU says it, by its words."""
    words = ("out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


if __name__ == "__main__":
    main()
