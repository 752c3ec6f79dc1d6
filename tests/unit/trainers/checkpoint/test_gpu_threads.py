"""On a GPU machine, each background thread uses only the GPU of its rank, or none."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import filesystem

from tests.unit.fakes import world_of
from trainers.checkpoint import sharded_files
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.parallel.process_group import World
from trainers.report.reporter import NullReporter
from trainers.report.telemetry import LiveProgress, Telemetry

SECOND_GPU = torch.device("cuda", 1)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.device]]:
    """Return the list of (thread name, device) pairs passed to `set_device`; no GPU is needed."""
    found: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: found.append((threading.current_thread().name, device))
    )
    return found


class IdleTelemetry(Telemetry):
    """Telemetry without samples."""

    def _sample_until_stopped(self) -> None:
        """Return immediately."""


class IdleWriter:
    """A stand-in for the checkpoint writer."""

    def write(self, _snapshot: Any) -> None:
        """Discard the snapshot."""


def idle_checkpointer(world: World) -> Checkpointer:
    """Return a checkpointer on which only the thread functions can be called."""
    subject = Checkpointer.__new__(Checkpointer)
    subject._world = world
    subject._writer = IdleWriter()  # type: ignore[assignment]
    subject._announce = lambda _: None
    return subject


def run_threads(world: World) -> None:
    telemetry = IdleTelemetry(world, NullReporter(), LiveProgress())
    checkpointer = idle_checkpointer(world)
    snapshot: Any = None
    threads = [
        telemetry.thread,
        threading.Thread(target=checkpointer._write, args=(snapshot,), name="checkpoint-writer"),
    ]
    for thread in threads:
        thread.start()
        thread.join()


def test_each_thread_chooses_its_ranks_own_gpu_first(chosen: list[tuple[str, torch.device]]) -> None:
    run_threads(replace(world_of(2, rank=1), device=SECOND_GPU))
    assert chosen == [(name, SECOND_GPU) for name in ("telemetry", "checkpoint-writer")]


def test_pieces_are_written_and_gathered_without_a_word_to_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are in host memory; torch's GPU loader would create a CUDA context on the first GPU."""
    asked: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        asked.append(threading.current_thread().name)
        raise AssertionError("CUDA was asked for")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    for name in ("current_device", "current_stream", "synchronize", "set_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert filesystem._OverlappingCpuLoader.__name__  # torch would choose this loader
    state = {"model": {"weight": torch.arange(6.0).view(2, 3)}, "optimizer": {"weight.step": torch.ones(())}}
    sharded_files.write(state, tmp_path / "shards", None)
    weights = sharded_files.gather_weights(tmp_path / "shards")
    assert torch.equal(weights["weight"], state["model"]["weight"])
    assert asked == []
