"""A benchmark measures what its name says."""

from __future__ import annotations

from argparse import Namespace

from benchmarks import watching


def test_the_unwatched_job_trains_and_writes_no_events() -> None:
    options = Namespace(model="linear", size="", dataset="digits", batch_size=64, steps=200)
    figures = watching.unwatched(options)  # fails if the run has events or another number of steps
    assert figures["steps_per_s"] > 0
    assert figures["cpu_ms_per_step"] > 0
