"""Tests of when the template is started and ended, with a listening process in its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import wait_until
from trainers.engines.local import warm_pool
from trainers.engines.local.warm_pool import StartRequest, WarmPool

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
    """Return a started pool while no run is active."""
    real = subprocess.Popen

    def listen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[1:] == [
            "-u",
            "-m",
            "trainers.engines.local.supervisor",
            "--wait",
            str(tmp_path / "runs"),
        ]
        return real([sys.executable, "-c", LISTENER, str(heard)], **options)

    monkeypatch.setattr(warm_pool.subprocess, "Popen", listen)
    monkeypatch.setattr(warm_pool, "BEGIN_AFTER_S", 0.0)
    monkeypatch.setattr(warm_pool, "POLL_EVERY_S", 0.02)
    made = WarmPool(tmp_path / "runs")
    look_after, made.looks = made._maintain, []  # type: ignore[attr-defined]
    monkeypatch.setattr(made, "_maintain", lambda: made.looks.append(look_after()))
    made.begin()
    made.note_running(False)
    yield made
    made.close()


def has(kept: WarmPool, is_there: bool) -> bool:
    return (kept.ready_resources() is not None) == is_there


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
    wait_until("a template", lambda: has(kept, True), SOON_S)
    if reason == "a run goes on":
        kept.note_running(True)
    elif reason == "no memory":
        memory.available = 10**8
    elif reason == "nobody looks":
        monkeypatch.setattr(warm_pool, "EXPECTED_FOR_S", 0.0)
    elif reason == "other code":
        memory.available = 1.4 * 10**9  # enough to keep them, too little to start new ones
        code[0] = "second"
        assert kept.take(StartRequest(run_dir="/runs/a")) is None
    else:
        memory.available = 1.4 * 10**9
        assert kept._waiting is not None
        kept._waiting.process.kill()
    wait_until("none", lambda: has(kept, False), SOON_S)
    if reason != "it has died":
        wait_until("its end", heard.exists, SOON_S)
        assert heard.read_text() == "", "no order was given"


def test_an_order_is_one_line_and_half_of_one_is_none() -> None:
    order = StartRequest(run_dir="/runs/ä\n", environment={"A": "b"})
    line = order.to_line()
    assert line.count(b"\n") == 1 and StartRequest.from_line(line) == order
    assert StartRequest.from_line(line[:-1]) is None and StartRequest.from_line(b"") is None
