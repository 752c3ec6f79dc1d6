"""The host of a GPU run only enqueues work: it waits only for the values of a report, with work enqueued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import traces
from benchmarks.gpu.cases import TINY_CASES
from benchmarks.gpu.job import run_probe
from tests.gpu.place import Place


@pytest.mark.real_gpu("it reads calls of CUDA from a trace of CUPTI")
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"model": "cnn", "model_size": "", "dataset": "fashion_mnist", "data_path": "", "batch_size": 16},
    ],
    ids=["gpt", "cnn"],
)
def test_only_steps_with_a_report_wait_for_the_gpu(
    other: dict[str, Any], gpu: Place, prepared: Path, tmp_path: Path
) -> None:
    case = TINY_CASES["gpt"]
    config = case.config(case.write(tmp_path), batch_size=2, device=gpu.device, is_compiled=False)
    # No epoch ends within these steps, because the host correctly waits at its end.
    notes = run_probe(tmp_path / "runs", config | other, "waits", warm_up=200, num_steps=60)
    found = {name: traces.Waits(**values) for name, values in notes.items()}
    assert found[traces.QUIET].num_steps > 0
    assert found[traces.QUIET].calls == {}
    assert found[traces.REPORTED].calls != {}
    assert traces.waits_with_work_ahead(found), found
