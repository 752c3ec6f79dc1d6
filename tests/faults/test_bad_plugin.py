"""Models that raise, hang or cannot be imported, in a copy of the repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.misbehaving import misbehaving, repository_with
from tests.harness import Launcher
from trainers.engines import liveness

DEADLINE_S = 15.0

CopyWith = Callable[[dict[str, str]], Launcher]


@pytest.fixture
def copy_with(tmp_path: Path) -> Iterator[CopyWith]:
    """Return a function that copies the training half, adds files to it and launches from there."""
    started: list[Launcher] = []

    def copy(files: dict[str, str]) -> Launcher:
        started.append(Launcher(tmp_path / "runs", repository=repository_with(files, tmp_path)))
        return started[-1]

    yield copy
    for launcher in started:
        launcher.close()


def is_running(event: dict[str, Any]) -> bool:
    return bool(event["state"] == "running")


def test_rank_that_raises_is_named_with_reason_and_traceback_within_15_s(copy_with: CopyWith) -> None:
    live = copy_with(misbehaving('raise RuntimeError("the weights are upside down")')).start(
        model="misbehaves"
    )
    live.wait_for("step", lambda event: event["step"] >= 1)
    status = live.is_over_within(DEADLINE_S)
    assert status.state == "failed", live.story()
    assert status.error is not None
    assert "Rank 1 failed: RuntimeError: the weights are upside down" in status.error, live.story()
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("rank_raised", 1)
    assert "misbehaves.py" in error["traceback"] and "in forward" in error["traceback"]
    assert "rank_1.log" in error["hint"]
    assert live.states() == ["starting", "running", "failed"]


def test_rank_that_exits_without_a_word_is_named(copy_with: CopyWith) -> None:
    live = copy_with(misbehaving("os._exit(41)")).start(model="misbehaves")
    status = live.wait_for_end()
    assert status.state == "failed", live.story()
    assert status.error is not None and "Rank 1" in status.error and "41" in status.error, live.story()


def test_when_all_ranks_leave_without_a_word_the_run_ends_and_says_so(copy_with: CopyWith) -> None:
    live = copy_with(misbehaving("os._exit(0)", rank=0)).start(model="misbehaves", nproc_per_node=1)
    live.wait_for("state", is_running)
    status = live.is_over_within(DEADLINE_S)
    assert status.state == "failed", live.story()
    assert status.error is not None and "The ranks ended before training was done" in status.error, (
        live.story()
    )


def test_rank_that_is_killed_is_missed_at_once_though_a_process_it_forked_goes_on(
    copy_with: CopyWith,
) -> None:
    forks = (
        "self.helper = __import__('multiprocessing').Process(target=__import__('time').sleep, args=(600,)); "
    )
    live = copy_with(misbehaving(forks + "self.helper.start(); os.kill(os.getpid(), 9)")).start(
        model="misbehaves", hang_timeout_s=60
    )
    live.wait_for("state", is_running)
    status = live.is_over_within(DEADLINE_S)
    assert status.error is not None and "Rank 1 was killed (SIGKILL)" in status.error, live.story()


def test_run_that_is_done_ends_also_with_a_thread_that_does_not(copy_with: CopyWith) -> None:
    threads = "__import__('threading').Thread(target=__import__('time').sleep, args=(600,)).start()"
    live = copy_with(misbehaving(threads)).start(model="misbehaves", max_steps=20)
    live.wait_for("state", is_running)
    assert live.is_over_within(DEADLINE_S).state == "finished", live.story()
    assert liveness.read_status(live.run).exit_code == 0


def test_plugin_that_cannot_be_imported_is_a_warning_by_name_and_training_goes_on(
    copy_with: CopyWith,
) -> None:
    live = copy_with({"trainers/models/broken.py": "import no_such_library\n"}).start(max_steps=5)
    live.finish()
    (warning,) = live.events("warning")
    assert warning["code"] == "plugin_broken"
    assert "trainers.models.broken" in warning["message"] and "no_such_library" in warning["message"]
