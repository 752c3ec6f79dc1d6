"""Run a worker of this folder on ranks and read its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness import ONE_THREAD, run_to_end, torchrun_of

TIMEOUT_S = 600.0


def command_of(num_ranks: int, worker: str, folder: Path, jobs: Mapping[str, Any] | None = None) -> list[str]:
    """Return the command of a worker that writes `answer.json` in a folder; its jobs are in a file there."""
    arguments = [str(folder / "answer.json")]
    if jobs is not None:
        (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        arguments.append(str(folder / "jobs.json"))
    return torchrun_of(num_ranks, f"tests.integration.{worker}", *arguments)


def answers_of(num_ranks: int, worker: str, folder: Path, jobs: Mapping[str, Any] | None = None) -> Any:
    """Run a worker with one thread a rank; return the JSON that it has written."""
    exit_code, said = run_to_end(command_of(num_ranks, worker, folder, jobs), TIMEOUT_S, ONE_THREAD)
    assert exit_code == 0, said[-3000:]
    return json.loads((folder / "answer.json").read_text(encoding="utf-8"))
