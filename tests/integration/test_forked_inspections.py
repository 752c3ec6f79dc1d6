"""Inspections forked from the template: bounded, isolated, and repeated if the template is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddp_gui.background import torch_template, trainer_process
from ddp_gui.background.torch_template import Fork, TemplateError, TorchTemplate
from ddp_gui.background.trainer_process import InspectionError
from ddp_gui.run.model_process import ModelProcesses
from tests.harness import wait_until
from tests.unit.trained_runs import leave_trained_run
from trainers.contract import config as config_module
from trainers.contract.config import Config
from trainers.data.dataset import DataOptions
from trainers.data.own import cache, processes
from trainers.data.own.dataset import Own
from trainers.machine import facilities
from trainers.machine.processes import is_alive

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
# A fork waits for the lock after tenths of a second.
LIMIT_S = 3.0


@pytest.fixture(scope="module")
def lasting() -> Iterator[TorchTemplate]:
    """Return a template for all tests that do not end it."""
    made = TorchTemplate()
    yield made
    made.close()


@pytest.fixture
def brief() -> Iterator[TorchTemplate]:
    made = TorchTemplate()
    yield made
    made.close()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return a small table, whose inspection does not end while `held`."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    path = tmp_path / "t.csv"
    path.write_text("x,label\n" + "".join(f"{row * 7 % 50},{'ab'[row % 2]}\n" for row in range(60)))
    return config_module.parse({"dataset": "own", "data_path": str(path)})


@contextlib.contextmanager
def held(config: Config) -> Iterator[None]:
    """Hold the lock for which an inspection waits before it prepares the data."""
    prepared = Own(DataOptions(path=config.data_path)).fingerprint
    with cache._locked(cache.cache_folder() / f"{prepared}.lock"):
        yield


@contextlib.contextmanager
def going_on(config: Config, template: TorchTemplate) -> Iterator[tuple[Future[Any], psutil.Process]]:
    """Yield a held inspection, and its process in the state in which it reads data."""
    with ThreadPoolExecutor(1) as threads:
        with held(config):
            asked = threads.submit(trainer_process.inspect_data, config, template)
            fork = wait_until("an inspection that waits", lambda: waiting_for_lock(template), PATIENCE_S)
            yield asked, fork
        asked.exception(PATIENCE_S)


def waiting_for_lock(template: TorchTemplate) -> psutil.Process | None:
    parent = template._process
    for fork in psutil.Process(parent.pid).children() if parent is not None else []:
        if any(path.endswith(".lock") for path in open_in(fork.pid)):
            return fork
    return None


def open_in(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    return [facilities.read_link(f"{folder}/{name}") or "" for name in facilities.names_in(folder)]


def pid_of(template: TorchTemplate) -> int:
    assert template._process is not None
    return template._process.pid


def test_a_fork_answers_as_a_process_of_its_own_does(
    table: Config, lasting: TorchTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = trainer_process.inspect_data(table, lasting)
    assert forked["ok"] and forked["dataset"]["models"]
    never = TorchTemplate()
    monkeypatch.setenv(facilities.WITHOUT, "1")
    assert trainer_process.inspect_data(table, never) == forked
    assert never._process is None, "without Linux's facilities nothing is forked"


def test_a_fork_has_limits_and_nothing_of_its_template(table: Config, lasting: TorchTemplate) -> None:
    with going_on(table, lasting) as (_, fork):
        own = str(cache.cache_folder())
        others = {path for path in open_in(fork.pid) if not path.startswith(own)}
        assert {path.partition(" ")[0] for path in others} == {"/dev/null", "/memfd:inspection"}
        limit, _ = fork.rlimit(psutil.RLIMIT_DATA)
        held_bytes = fork.memory_info().data  # type: ignore[attr-defined]
        assert processes.MEMORY_BYTES <= limit < processes.MEMORY_BYTES + held_bytes
        assert fork.nice() >= 5
        tasks = facilities.names_in(f"/proc/{pid_of(lasting)}/task")
        assert tasks == [str(pid_of(lasting))], "no thread that a fork would lack"
        assert not [path for path in open_in(pid_of(lasting)) if path.startswith("/dev/nvidia")]


@pytest.mark.parametrize("is_stubborn", [False, True])
def test_a_fork_that_takes_too_long_is_ended(
    table: Config, lasting: TorchTemplate, monkeypatch: pytest.MonkeyPatch, is_stubborn: bool
) -> None:
    monkeypatch.setattr(trainer_process, "END_S", 0.5 if is_stubborn else PATIENCE_S)
    start = partial(trainer_process._fork, lasting, trainer_process._arguments(table))
    with held(table), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(trainer_process._run_inspection, start, LIMIT_S)
        fork = wait_until("an inspection that waits", lambda: waiting_for_lock(lasting), PATIENCE_S)
        if is_stubborn:
            fork.suspend()
        began = time.monotonic()
        with pytest.raises(InspectionError, match=r"took more than .* and was stopped"):
            asked.result(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2, "SIGTERM or SIGKILL, not the patience"
        assert not is_alive(fork.pid)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "because memory ran out"), (signal.SIGSEGV, r"crashed \(SIGSEGV\)")],
)
def test_the_end_of_a_fork_is_explained(
    table: Config, lasting: TorchTemplate, number: int, words: str
) -> None:
    with going_on(table, lasting) as (asked, fork):
        before = pid_of(lasting)
        fork.send_signal(number)
        with pytest.raises(InspectionError, match=words):
            asked.result(PATIENCE_S)
        assert pid_of(lasting) == before


def test_a_failed_fork_and_signals_to_the_page_s_group_leave_the_others_alone(
    table: Config, lasting: TorchTemplate
) -> None:
    def refuse(*_: object) -> Fork:
        raise ConnectionResetError("it ended before it said its process id")

    with going_on(table, lasting) as (asked, fork):
        before = pid_of(lasting)
        with pytest.raises(TemplateError, match="before it said"):
            lasting.fork(refuse, b"model")
        assert os.getpgid(before) != os.getpgrp(), "Ctrl+C in the page's terminal does not reach it"
        os.kill(before, signal.SIGTERM)
        assert pid_of(lasting) == before and is_alive(fork.pid)
    assert asked.result()["ok"]
    assert trainer_process.inspect_data(table, lasting)["ok"] and pid_of(lasting) == before


def test_data_is_inspected_although_the_template_is_killed(table: Config, brief: TorchTemplate) -> None:
    with going_on(table, brief) as (asked, fork):
        os.kill(pid_of(brief), signal.SIGKILL)
        wait_until("its end", lambda: not is_alive(fork.pid), PATIENCE_S)
    assert asked.result()["ok"], "by a process of its own"
    assert trainer_process.inspect_data(table, brief)["ok"]
    assert is_alive(pid_of(brief)), "a new one"
    os.kill(pid_of(brief), signal.SIGKILL)
    assert trainer_process.inspect_data(table, brief)["ok"]


def test_data_is_inspected_although_no_template_can_start(
    table: Config, brief: TorchTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_template, "MODULE", "trainers.no_such_module")
    assert trainer_process.inspect_data(table, brief)["ok"]


def test_one_template_serves_models_and_inspections(
    table: Config, brief: TorchTemplate, tmp_path: Path
) -> None:
    run = leave_trained_run(tmp_path / "runs", "digits", "linear")[0]
    models = ModelProcesses(brief)
    question = {"run_dir": str(run.path), "step": 1, "do": "predict", "inputs": {"pixels": [[3] * 8] * 8}}
    with going_on(table, brief) as (asked, fork):
        assert models.ask("ann", question)
        assert len(psutil.Process(pid_of(brief)).children()) == 2
        models.close()
        with pytest.raises(InspectionError, match="the page ended"):
            asked.result(PATIENCE_S)
        wait_until("its end", lambda: not is_alive(fork.pid), PATIENCE_S)
