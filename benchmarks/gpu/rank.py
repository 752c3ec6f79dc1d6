"""A replacement of trainers.worker, started by torchrun, that runs the same job with a probe.

When the probe has finished, the rank writes the results and stops the run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu import probes
from benchmarks.gpu.probes import Notes
from trainers import build, loop, worker
from trainers.contract.rundir import RunDirectory
from trainers.job import Job
from trainers.report import telemetry

# JSON with the probe's name, its settings and its output file, in an environment variable.
LOOK = "GPU_BENCHMARK_LOOK"
OUT_OF_MEMORY = "out_of_memory"


def main() -> None:
    """Train as the worker does, with a probe."""
    chosen: dict[str, Any] = json.loads(os.environ[LOOK])
    out, probe = Path(chosen["out"]), probes.PROBES[chosen["probe"]]
    train, run_rank = loop.train, worker.run_rank

    def train_probed(job: Job) -> None:
        def done(notes: Notes) -> None:
            out.write_text(json.dumps(notes))
            RunDirectory(Path(sys.argv[1])).append_command("stop", save=False)

        job.loader = probes.ProbedLoader(job.loader, probes.stepped(probe(job, **chosen["settings"]), done))
        train(job)

    def run_and_tell(run: RunDirectory, resume_step: int | None) -> Literal["done"]:
        try:
            return run_rank(run, resume_step)
        except RuntimeError as error:
            if is_out_of_memory(error):
                out.write_text(json.dumps({OUT_OF_MEMORY: True}))
            raise

    loop.train = train_probed
    worker.run_rank = run_and_tell
    build.StepMeter = probes.SwitchedMeter  # type: ignore[attr-defined]
    telemetry.Telemetry = probes.NewestTelemetry  # type: ignore[misc]
    worker.end(worker.main())


def is_out_of_memory(error: RuntimeError) -> bool:
    """True if an error means out of memory, by its type or, for GPU libraries, by its message."""
    words = ("out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


if __name__ == "__main__":
    main()
