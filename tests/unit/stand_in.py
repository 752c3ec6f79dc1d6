"""A fake supervisor that trains nothing: follows the protocol of locks, tickets and status, in a thread."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.queue.policy import DeviceSnapshot, QueueDevices, Users
from ddp_gui.queue.scheduler import Scheduler
from tests.harness import wait_until
from trainers.contract import tickets
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import process_handle
from trainers.contract.tickets import Grant, GrantedGpu
from trainers.engines import liveness
from trainers.engines.local.engine import LocalEngine

PIDS = itertools.count(10_000_000)
LAPTOP = Machine(num_gpus=0, num_cores=8)
SERVER = Machine(num_gpus=4, num_cores=8)
FOUR_GPUS = tuple(GrantedGpu(index=index, uuid=f"GPU-{index}") for index in range(4))


class FakeDevices(QueueDevices):
    """A machine with fake GPUs and fake programs on them."""

    def __init__(self, cpu_ranks: int | None, gpus: tuple[GrantedGpu, ...] = (), **users: Users) -> None:
        self.cpu_ranks = cpu_ranks
        self.now = DeviceSnapshot(gpus=gpus, users=dict(users), cpu_ranks=cpu_ranks)

    def sample(self) -> DeviceSnapshot:
        return self.now


class StandIn:
    """The parts of the result of `LocalEngine.start_supervisor` that the engine uses."""

    def __init__(
        self, run: RunDirectory, resume_step: int | None, grant: Grant, *, is_refused: bool = False
    ) -> None:
        self.run, self.resume_step, self.grant, self.pid = run, resume_step, grant, next(PIDS)
        self._token = "no such token" if is_refused else grant.token
        self._is_over, self._returncode = threading.Event(), None
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the run finish."""
        self._is_over.set()
        self._thread.join()

    def poll(self) -> int | None:
        return self._returncode

    def wait(self) -> int | None:
        self._thread.join()
        return self._returncode

    def kill(self) -> None:
        self._is_over.set()

    def _supervise(self) -> None:
        try:
            lock = self.run.acquire_lock()
        except ValueError as error:
            self._give_up(error)
            return
        try:
            tickets.claim_ticket(self.run, self._token)
            mine = Status(state="running", handle=process_handle(self.pid), started_unix_s=time.time())
            self.run.write_status(mine)
            tickets.close_ticket(self.run)
            self._is_over.wait()
            self.run.write_status(replace(mine, state="finished", ended_unix_s=time.time()))
            self._returncode = 0
        except ValueError as error:
            self._give_up(error)
        finally:
            os.close(lock)

    def _give_up(self, error: Exception) -> None:
        (self.run.logs / "supervisor.log").write_text(f"{error}\n")
        self._returncode = 1


class Supervisors:
    """All started fake supervisors, with look-up by run."""

    def __init__(self) -> None:
        self.started: list[StandIn] = []
        self.is_refused = False

    def start(self, run: RunDirectory, resume_step: int | None, grant: Grant) -> Any:
        self.started.append(StandIn(run, resume_step, grant, is_refused=self.is_refused))
        return self.started[-1]

    def run_ids(self) -> list[str]:
        return [each.run.run_id for each in self.started]

    def of(self, run: RunDirectory) -> StandIn:
        return next(each for each in reversed(self.started) if each.run.run_id == run.run_id)

    def end(self, run: RunDirectory) -> None:
        """Let a run finish, and wait until its files record it."""
        self.of(run).end()
        wait_until("the end", lambda: liveness.read_status(run).state == "finished", 60)

    def has_begun(self, run: RunDirectory) -> None:
        """Wait until a run is running and its ticket is claimed."""
        wait_until(f"{run.run_id} running", lambda: liveness.read_status(run).state == "running", 60)
        wait_until("the ticket being taken", lambda: not run.queued.exists(), 60)

    def close(self) -> None:
        for each in self.started:
            each.end()


@pytest.fixture
def supervisors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisors]:
    """Replace supervisors with fakes."""
    made = Supervisors()
    monkeypatch.setattr(LocalEngine, "start_supervisor", made.start)
    yield made
    made.close()


class Place:
    """A runs directory on which pages can be opened."""

    def __init__(self, runs_dir: Path, catalogue: Catalogue, supervisors: Supervisors) -> None:
        self.runs_dir, self.supervisors, self.catalogue = runs_dir, supervisors, catalogue
        self.devices = FakeDevices(2)

    def page(self, devices: FakeDevices | None = None, **options: Any) -> Scheduler:
        return Scheduler(self.runs_dir, devices or self.devices, lambda run_ids: None, **options)

    def planned(self, num_ranks: int = 2, machine: Machine = LAPTOP, **raw: Any) -> plan.Plan:
        raw = {"num_epochs": 3, "batch_size": 100, "nproc_per_node": num_ranks} | raw
        return plan.make(plan.parse(raw, machine), self.catalogue, machine)

    def tickets(self) -> set[str]:
        return {path.parent.name for path in self.runs_dir.glob("*/queued.json")}


@pytest.fixture
def place(tmp_path: Path, catalogue: Catalogue, supervisors: Supervisors) -> Place:
    return Place(tmp_path / "runs", catalogue, supervisors)
