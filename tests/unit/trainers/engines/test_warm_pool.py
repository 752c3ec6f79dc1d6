"""Tests of when standby ranks are started and stopped, with a listening process in their place."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import wait_until
from trainers.engines.local import warm_pool
from trainers.engines.local.warm_pool import Order, WarmPool

LISTENER = "import sys; open(sys.argv[1], 'w').write(sys.stdin.readline())"
SOON_S = 60.0


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the free memory of the machine in bytes; a test may change it."""
    free = SimpleNamespace(available=10**11)
    monkeypatch.setattr(warm_pool.psutil, "virtual_memory", lambda: free)
    return free


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the fingerprint of the code; a test may change it."""
    now = ["first"]
    monkeypatch.setattr(warm_pool.plain_files, "fingerprint_of_code", lambda: now[0])
    return now


@pytest.fixture
def heard(tmp_path: Path) -> Path:
    return tmp_path / "heard"


@pytest.fixture
def kept(
    tmp_path: Path, heard: Path, memory: object, code: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WarmPool]:
    """Return a started pool of standby ranks while no run is active."""
    real = subprocess.Popen

    def listen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[1:3] == ["-m", "trainers.engines.local.warm_supervisor"]
        return real([sys.executable, "-c", LISTENER, str(heard)], **options)

    monkeypatch.setattr(warm_pool.subprocess, "Popen", listen)
    monkeypatch.setattr(warm_pool, "BEGIN_AFTER_S", 0.0)
    monkeypatch.setattr(warm_pool.host, "num_cores", lambda: 8)
    monkeypatch.setattr(warm_pool, "POLL_EVERY_S", 0.02)
    made = WarmPool(tmp_path / "runs")
    look_after, made.looks = made._maintain, []  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "_maintain", lambda: made.looks.append(look_after()))
    made.begin()
    made.note_running(False)
    yield made
    made.close()


def has(kept: WarmPool, num_ranks: int | None) -> bool:
    found = kept.kept_ready()
    return (found is None) if num_ranks is None else (found is not None and found["num_ranks"] == num_ranks)


def let_pass(kept: WarmPool) -> None:
    """Wait until the pool's thread has completed two full checks."""
    looks: list[None] = kept.looks  # type: ignore[attr-defined]
    before = len(looks)
    wait_until("further looks", lambda: len(looks) >= before + 3, SOON_S)


def test_as_many_stand_by_as_were_chosen_last(kept: WarmPool) -> None:
    let_pass(kept)
    assert kept.kept_ready() is None, "nobody has chosen yet"
    kept.expect(2)
    wait_until("two", lambda: has(kept, 2), SOON_S)
    found = kept.kept_ready()
    assert found is not None and found["memory_bytes"] > 0
    kept.expect(4)
    wait_until("four", lambda: has(kept, 4), SOON_S)


def test_they_hear_the_order_and_the_next_run_finds_none(kept: WarmPool, heard: Path) -> None:
    kept.expect(2)
    wait_until("two", lambda: has(kept, 2), SOON_S)
    order = Order(run_dir="/runs/a", resume_step=7, ticket="t", environment={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    process = kept.take(2, order)
    assert process is not None and process.wait(SOON_S) == 0
    assert Order.from_line(heard.read_bytes()) == order
    assert kept.take(2, order) is None
    let_pass(kept)
    assert kept.kept_ready() is None, "a run goes on now"


def test_a_run_of_another_number_of_ranks_does_without_and_has_the_room(kept: WarmPool) -> None:
    kept.expect(2)
    wait_until("two", lambda: has(kept, 2), SOON_S)
    assert kept.take(3, Order(run_dir="/runs/a")) is None
    kept.note_running(True)
    assert kept.kept_ready() is None


@pytest.mark.parametrize(
    "reason", ["a run goes on", "no memory", "other code", "nobody looks", "it has died"]
)
def test_they_are_let_go(
    kept: WarmPool,
    memory: SimpleNamespace,
    code: list[str],
    heard: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    kept.expect(2)
    wait_until("two", lambda: has(kept, 2), SOON_S)
    if reason == "a run goes on":
        kept.note_running(True)
    elif reason == "no memory":
        memory.available = 10**8
    elif reason == "nobody looks":
        monkeypatch.setattr(warm_pool, "KEPT_S", 0.0)
    elif reason == "other code":
        memory.available = 1.5 * 10**9  # enough to keep them, too little to start new ones
        code[0] = "second"
        assert kept.take(2, Order(run_dir="/runs/a")) is None
    else:
        memory.available = 1.5 * 10**9
        assert kept._kept is not None
        kept._kept.process.kill()
    wait_until("nobody standing by", lambda: has(kept, None), SOON_S)
    if reason != "it has died":
        wait_until("its end", heard.exists, SOON_S)
        assert heard.read_text() == "", "no order was given"


def test_there_are_none_without_room_for_them(kept: WarmPool, memory: SimpleNamespace) -> None:
    memory.available = 2 * 10**9
    kept.expect(8)
    let_pass(kept)
    assert kept.kept_ready() is None


def test_there_are_never_more_than_cores(kept: WarmPool) -> None:
    kept.expect(9)
    let_pass(kept)
    assert kept.kept_ready() is None
    kept.expect(8)
    wait_until("eight", lambda: has(kept, 8), SOON_S)


def test_there_are_none_where_they_are_not_wanted(
    tmp_path: Path, code: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool has no thread that could start ranks later."""
    begun: list[Any] = []
    monkeypatch.setattr(warm_pool.threading, "Thread", lambda **about: begun.append(about))
    off = WarmPool(tmp_path / "runs", is_on=False)
    off.begin()
    off.note_running(False)
    off.expect(2)
    assert begun == []
    assert off.kept_ready() is None and off.take(2, Order(run_dir="/runs/a")) is None
    assert not (tmp_path / "runs").exists()


def test_where_none_can_be_started_it_is_said_and_nothing_else_is_wrong(
    kept: WarmPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(warm_pool.subprocess, "Popen", fails)
    kept.expect(2)
    said: list[str] = []

    def says_so() -> bool:
        said.append(capsys.readouterr().out)
        return "The warm pool cannot start" in "".join(said)

    wait_until("it being said", says_so, SOON_S)
    assert kept.take(2, Order(run_dir="/runs/a")) is None


def test_what_killed_ones_left_is_removed_and_those_that_live_are_not(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    with (tmp_path / "alive" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        warm_pool._sweep(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["alive"]


def test_an_order_is_one_line_and_half_of_one_is_none() -> None:
    order = Order(run_dir="/runs/ä\n", environment={"A": "b"})
    line = order.to_line()
    assert line.count(b"\n") == 1 and Order.from_line(line) == order
    assert Order.from_line(line[:-1]) is None and Order.from_line(b"") is None
    with pytest.raises(ValueError, match="makes no sense"):
        Order.from_line(json.dumps({"run": "a"}).encode() + b"\n")
