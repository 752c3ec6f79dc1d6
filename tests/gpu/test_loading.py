"""Data in host memory: worker processes read it, without additional synchronization with the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import traces
from benchmarks.gpu.cases import TINY_CASES
from benchmarks.gpu.job import run_probe
from tests.gpu.place import Place


@pytest.mark.real_gpu("it reads calls of CUDA from a trace of CUPTI")
def test_data_on_the_host_and_four_workers_make_nobody_wait_for_the_gpu(
    place: Place, prepared: Path, tmp_path: Path
) -> None:
    """Steps without a report contain no call that waits for the GPU and no copy from it (profiler trace)."""
    case = TINY_CASES["gpt"]
    config = case.config(case.write(tmp_path), batch_size=2, device=place.device, is_compiled=False)
    config |= {"data_location": "host", "num_workers": 4, "pin_memory": True}
    num_steps = (200, 60) if place.is_gpu else (5, 5)
    notes = run_probe(tmp_path / "runs", config, "waits", warm_up=num_steps[0], num_steps=num_steps[1])
    quiet, reported = notes[traces.QUIET], notes[traces.REPORTED]
    assert quiet["num_steps"] + reported["num_steps"] > 0
    assert quiet["calls"] == {}, "a step without a report waited"
    if place.is_gpu:
        assert quiet["num_steps"] and reported["calls"], f"this trace proves nothing: {notes}"
