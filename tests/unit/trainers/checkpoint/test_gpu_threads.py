"""Threads beside training: on a GPU machine each keeps to its own rank's GPU, or asks for none."""

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
from trainers.report.telemetry import Pulse, Telemetry

SECOND_GPU = torch.device("cuda", 1)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.device]]:
    """Return which thread has chosen which GPU; there is none here."""
    found: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: found.append((threading.current_thread().name, device))
    )
    return found


class IdleTelemetry(Telemetry):
    """Telemetry that has nothing to sample."""

    def _sample_until_stopped(self) -> None:
        """Do nothing."""


class IdleWriter:
    """Stands for what writes; `done` is told."""

    def write(self, _snapshot: Any) -> None:
        """Write nothing."""


def idle_checkpointer(world: World) -> Checkpointer:
    """Return a checkpointer of which only the bodies of its threads can be called."""
    subject = Checkpointer.__new__(Checkpointer)
    subject._world = world
    subject._writer = IdleWriter()  # type: ignore[assignment]
    subject._announce = lambda _: None
    return subject


def run_threads(world: World) -> None:
    telemetry = IdleTelemetry(world, NullReporter(), Pulse())
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


def test_on_the_cpu_no_thread_chooses_a_gpu(chosen: list[tuple[str, torch.device]]) -> None:
    run_threads(world_of(2, rank=1))
    assert chosen == []


def test_pieces_are_written_and_gathered_without_a_word_to_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie on the host; torch's loader for GPUs would make a context on the first one."""
    asked: list[str] = []

    def refuse(*_: Any, **__: Any) -> None:
        asked.append(threading.current_thread().name)
        raise AssertionError("CUDA was asked for")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    for name in ("current_device", "current_stream", "synchronize", "set_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert filesystem._OverlappingCpuLoader.__name__  # the one that would be taken
    state = {"model": {"weight": torch.arange(6.0).view(2, 3)}, "optimizer": {"weight.step": torch.ones(())}}
    sharded_files.write(state, tmp_path / "shards", None)
    weights = sharded_files.gather_weights(tmp_path / "shards")
    assert torch.equal(weights["weight"], state["model"]["weight"])
    assert asked == []
