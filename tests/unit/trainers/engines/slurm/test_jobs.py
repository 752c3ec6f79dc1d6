"""Tests of a user's Slurm jobs: parsing squeue, queue positions, and how often start times are queried."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.unit.trainers.engines.slurm.test_slurm import put
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines import remembered
from trainers.engines.slurm import client
from trainers.engines.slurm.engine import SlurmEngine

ROWS = (
    "12|RUNNING|None|n[1-2]|gpu|2|1700000000|1700000100|ddp-a|b",
    "13|PENDING|Priority||gpu|4|1700000000|N/A|mine",
    "14|PENDING|Resources||gpu|1|1700000000|1700009000|ddp-x",
    "9|COMPLETED|None|n1|gpu|1|1700000000|1700000100|old",
)
SINFO = "gpu*|up|4|idle|8|16000|1-00:00:00|1-infinite|(null)|gpu:0|"


def squeue(
    folder: Path, rows: tuple[str, ...] = ROWS, pending: str = "14|gpu|90\n13|gpu|50\n7|lab|x"
) -> SlurmEngine:
    """Return an engine whose squeue prints these rows, and prints `pending` for a query of waiting jobs."""
    (folder / "rows").write_text("\n".join(rows) + "\n")
    (folder / "pending").write_text(f"{pending}\n")
    answer = f'case "$*" in *PENDING*) cat {folder}/pending;; *) cat {folder}/rows;; esac'
    body = f'echo "$@" >> {folder}/asked; {answer}'
    put(folder, "sinfo", f"echo {shlex.quote(SINFO)}")
    return SlurmEngine(put(folder, "squeue", body))


def test_while_the_controller_is_silent_jobs_are_as_they_were_known_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "now_unix_s", lambda: 1000.0)
    engine = squeue(tmp_path)
    assert len(engine.queue().jobs) == 3
    put(tmp_path, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    engine._slurm.forget()
    monkeypatch.setattr(remembered, "now_unix_s", lambda: 2000.0)
    queue = engine.queue()
    assert len(queue.jobs) == 3 and queue.silent_since_unix_s == 1000.0
    status = Status(state="queued", engine="slurm", handle={"job_id": "13"})
    words = engine.describe(RunDirectory(tmp_path), status, is_queued=True).reason
    assert words is not None and "is unknown since " in words and "Unable to contact" in words


def test_times_are_read_in_both_of_slurms_forms() -> None:
    assert client.unix_s("1700000000") == 1_700_000_000.0
    assert client.unix_s("2026-11-24T03:26:55") is not None
    assert [client.unix_s(text) for text in ("N/A", "Unknown", "", "0")] == [None] * 4
