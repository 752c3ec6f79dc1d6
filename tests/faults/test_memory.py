"""Out of memory under a real cgroup limit: the kernel kills a rank, and the run reports the cause."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import END_TIMEOUT_S, Launcher, ranks_of, wait_until
from trainers.machine import host

MB = 2**20


@pytest.fixture
def group() -> Iterator[Path]:
    """Create a child cgroup of this process's cgroup. Skips if that is not permitted."""
    if not any(path.exists() for path in host._counters_of_group()):
        pytest.skip("this process is in no control group that counts memory")
    folder = _group_of_this_process() / f"ddp-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    if not any((folder / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
        folder.rmdir()
        pytest.skip("this control group cannot limit memory")
    yield folder
    procs = folder / "cgroup.procs"
    wait_until("no process in the group", lambda: not procs.read_text(), END_TIMEOUT_S)
    folder.rmdir()


def limit(group: Path, num_bytes: int) -> None:
    names = ("memory.max", "memory.limit_in_bytes")
    next(group / name for name in names if (group / name).exists()).write_text(str(num_bytes))


def move(group: Path, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # a loader worker has just ended
        (group / "cgroup.procs").write_text(str(pid))


def used(group: Path) -> int:
    names = ("memory.current", "memory.usage_in_bytes")
    return int(next(group / name for name in names if (group / name).exists()).read_text())


def test_the_kernel_ends_a_rank_and_the_message_names_memory(launcher: Launcher, group: Path) -> None:
    outside = _group_of_this_process()
    move(group, os.getpid())
    try:
        live = launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6, num_workers=1)
    finally:
        move(outside, os.getpid())
    live.wait_for_step(5)
    folder = _folder_of(psutil.Process(ranks_of(live.run)[0]))
    limit(group, used(group) + 2 * MB)
    ended = live.wait_for_end()
    assert ended.state == "failed", live.story()
    (error,) = live.events("error")
    assert error["code"] in ("rank_killed", "rank_raised"), error
    assert "because memory ran out" in error["message"] and "fewer loader workers" in error["hint"]
    assert not folder.exists()


def test_a_killed_rank_without_lack_of_memory_has_no_cause_and_leaves_nothing(launcher: Launcher) -> None:
    before = set(Path(tempfile.gettempdir()).glob("pymp-*"))
    live = launcher.start(num_epochs=100_000, checkpoint_every_steps=10**6, num_workers=1)
    live.wait_for_step(5)
    rank = psutil.Process(ranks_of(live.run)[1])
    for process in (rank, *rank.children(recursive=True)):
        score = Path(f"/proc/{process.pid}/oom_score_adj").read_text()
        assert int(score) == host.RANK_SCORE, "the kernel takes these first"
    assert int(Path(f"/proc/{live.supervisor.pid}/oom_score_adj").read_text()) < host.RANK_SCORE
    folder = _folder_of(rank)
    rank.kill()
    assert live.wait_for_end().state == "failed"
    (error,) = live.events("error")
    assert error["message"] == "Rank 1 was killed (SIGKILL), by the system or by a user."
    assert "memory" not in error["hint"]
    assert not folder.exists()
    assert set(Path(tempfile.gettempdir()).glob("pymp-*")) <= before


def _group_of_this_process() -> Path:
    counters = host._counters_of_group()
    return next(path.parent for path in counters if path.exists())


def _folder_of(process: psutil.Process) -> Path:
    folder = process.environ()[host.RUN_FOLDER]
    assert Path(folder).is_dir()
    return Path(folder)
