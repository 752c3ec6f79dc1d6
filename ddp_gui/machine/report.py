"""The report of the Machine page."""

from __future__ import annotations

import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from ddp_gui.background.loop_delay import LoopDelay
from ddp_gui.devices import capacity, disk
from ddp_gui.devices.capacity import Owners
from ddp_gui.devices.disk import DiskForecast
from ddp_gui.machine import communication
from ddp_gui.machine.communication import CommunicationChecks, LinkChecks
from ddp_gui.machine.machine_check import MachineChecks
from ddp_gui.machine.missing import list_missing, list_versions
from ddp_gui.plan.catalogue import Catalogue, CatalogueError, CatalogueSource
from trainers.engines.base import Engine, HostChecks
from trainers.files import installation
from trainers.machine import host, nvml, processes
from trainers.machine.host import CoreReader

Value = TypeVar("Value")

MAX_CPU_SHARE = 0.01
FIRST_WAIT_S = 0.3


class SlowReading(Generic[Value]):
    """Caches a function's result. A request for an outdated result refreshes it in a thread."""

    def __init__(self, read: Callable[[], Value], every_s: float) -> None:
        self._read = read
        self._every_s = every_s
        self._value: Value | None = None
        self._next_at = 0.0
        self._is_refreshing = False
        self._lock = threading.Lock()

    def value(self) -> Value | None:
        """Return the last value, or None until the first reading is done."""
        with self._lock:
            is_due = not self._is_refreshing and time.monotonic() >= self._next_at
            self._is_refreshing = self._is_refreshing or is_due
        if is_due:
            thread = threading.Thread(target=self._refresh, name="slow-reading", daemon=True)
            thread.start()
            if self._value is None:
                # Wait briefly for the first reading, which is usually quick, so that the first page has a
                # value.
                thread.join(FIRST_WAIT_S)
        return self._value

    def _refresh(self) -> None:
        started, cpu_started = time.monotonic(), time.thread_time()
        try:
            self._value = self._read()
        finally:
            pause_s = max(self._every_s, (time.thread_time() - cpu_started) / MAX_CPU_SHARE)
            with self._lock:
                self._next_at = started + pause_s
                self._is_refreshing = False


SAMPLE_EVERY_S = 1.0
# Maximum interval between readings for which a mean since the last call counts as the current value.
STALE_AFTER_S = 10.0
RUNS_EVERY_S = 5.0
MISSING_EVERY_S = 30.0
TAKEN_EVERY_S = 60.0
HOSTS_EVERY_S = 15.0

Report = dict[str, Any]


class MachineReport:
    """The current state of the machine, shared by all viewers."""

    def __init__(
        self,
        runs_dir: Path,
        catalogue: CatalogueSource,
        checks: CommunicationChecks,
        machine_checks: MachineChecks,
        engine: Engine,
        links: LinkChecks,
        delay: LoopDelay,
    ) -> None:
        self._runs_dir = runs_dir
        self._catalogue = catalogue
        self._checks = checks
        self._machine_checks = machine_checks
        self._links = links
        self._delay = delay
        self._owners = Owners(runs_dir)
        self._forecast = DiskForecast()
        self._cores = CoreReader()
        self._lock = threading.Lock()
        self._report: Report = {}
        self._reported_at = float("-inf")
        self._runs = SlowReading(self._sample_runs, RUNS_EVERY_S)
        self._missing = SlowReading(self._find_missing, MISSING_EVERY_S)
        self._warm_pool = SlowReading(engine.preparation.ready_resources, RUNS_EVERY_S)
        self._hosts = None
        if isinstance(engine, HostChecks):
            self._hosts = SlowReading(lambda: engine.report(runs_dir), HOSTS_EVERY_S)
        self._taken_bytes = SlowReading(lambda: disk.taken_bytes(runs_dir), TAKEN_EVERY_S)
        self._versions: list[dict[str, str | None]] | None = None

    def sample(self) -> Report:
        """Return the report; concurrent viewers share one."""
        with self._lock:
            now = time.monotonic()
            if now - self._reported_at >= SAMPLE_EVERY_S:
                is_stale = now - self._reported_at > STALE_AFTER_S
                self._report = self._build_report(is_stale)
                self._reported_at = now
            return self._report

    def live_run_ids(self) -> list[str]:
        """Return the live runs on this machine."""
        return sorted(self._owners.live_runs())

    def _build_report(self, is_stale: bool) -> Report:
        machine = capacity.read()
        runs = self._runs.value()
        if self._versions is None:
            self._versions = list_versions()
        return {
            "time_unix_s": time.time(),
            "summary": machine.describe(),
            "gpus": [self._gpu(index, handle) for index, handle in nvml.all_gpus().items()],
            "num_gpus_for_runs": machine.num_gpus,
            "cpu": self._cpu(machine.num_cores, is_stale),
            "memory": _memory(runs),
            "runs": runs or [],
            "standby": self._warm_pool.value(),
            "hosts": self._host_reports(),
            "links": self._links.to_json() if self._hosts else None,
            "disk": self._disk(),
            "event_loop": self._delay.to_json(),
            "versions": self._versions,
            "missing": self._missing.value(),
            "machine_check": {
                "command": self._check_command(),
                "newest_check_id": self._machine_checks.newest_id(),
                "is_running": self._machine_checks.is_running,
            },
            "communication": {
                "backend": communication.choose_backend(machine),
                "fewest_ranks": communication.FEWEST_RANKS,
                "most_ranks": communication.max_ranks(machine),
                "default_ranks": communication.default_ranks(machine),
                "command": communication.shown_command("N", machine),
                "newest_check_id": self._checks.newest_id,
            },
        }

    def _check_command(self) -> str:
        runs_dir = shlex.quote(str(self._runs_dir.absolute()))
        program = shlex.join([sys.executable, "-m", "trainers.check_machine"])
        return installation.in_project(f"{program} --runs-dir {runs_dir}")

    def _host_reports(self) -> list[dict[str, Any]] | None:
        """Return the reports of an engine's other machines; empty before the first reading is done."""
        if self._hosts is None:
            return None
        return [asdict(report) for report in self._hosts.value() or ()]

    def _cpu(self, num_cores: int, is_stale: bool) -> dict[str, Any]:
        percents = self._cores.read(afresh=is_stale)
        return {
            "name": host.cpu_name(),
            "num_cores_for_runs": num_cores,
            "percent": round(sum(percents) / len(percents), 1),
            "core_percents": percents,
        }

    def _gpu(self, index: int, handle: Any | None) -> dict[str, Any]:
        reading = host.Reading() if handle is None else nvml.read_gpu(handle)
        gpu_processes = None if handle is None else nvml.gpu_processes(handle)
        if not gpu_processes and not nvml.sees_all_processes():
            gpu_processes = None  # in a container, an empty list does not prove that the GPU is unused
        users = None if gpu_processes is None else [self._gpu_user(process) for process in gpu_processes]
        return {"index": index, "answers": handle is not None, **vars(reading), "processes": users}

    def _gpu_user(self, process: nvml.GpuProcess) -> dict[str, Any]:
        info = processes.inspect(process.pid)
        return {
            "pid": process.pid,
            "run_id": self._owners.run_of(process.pid),
            "name": process.name if info is None else info.name,
            "user": None if info is None else info.user,
            "memory_used_bytes": process.memory_used_bytes,
        }

    def _sample_runs(self) -> list[dict[str, Any]]:
        """Read the live runs, the memory of each, and the growth of their directories."""
        live = self._owners.live_runs()
        sizes = {run_id: disk.taken_bytes(self._runs_dir / run_id) for run_id in live}
        self._forecast.add(sizes, time.monotonic())
        return [
            {"run_id": run_id, "num_processes": len(pids), "memory_bytes": _total_bytes_if_known(pids)}
            for run_id, pids in sorted(live.items())
        ]

    def _find_missing(self) -> list[dict[str, Any]]:
        catalogue: Catalogue | None
        try:
            catalogue = self._catalogue.get()
        except CatalogueError as error:
            problem = {"what": "The catalogue", "meaning": str(error), "command": None, "is_problem": True}
            return [problem, *list_missing(None, disk.nearest_folder(self._runs_dir))]
        return list_missing(catalogue, disk.nearest_folder(self._runs_dir))

    def _disk(self) -> dict[str, Any]:
        usage = shutil.disk_usage(disk.nearest_folder(self._runs_dir))
        return {
            "path": str(self._runs_dir),
            "free_bytes": usage.free,
            "total_bytes": usage.total,
            "runs_bytes": self._taken_bytes.value(),
            "forecast": self._forecast.sample(usage.free),
        }


def _memory(runs: list[dict[str, Any]] | None) -> dict[str, Any]:
    used_bytes, total_bytes = host.memory_bytes()
    run_bytes = [None] if runs is None else [run["memory_bytes"] for run in runs]
    return {
        "used_bytes": used_bytes,
        "total_bytes": total_bytes,
        "runs_bytes": None if None in run_bytes else sum(run_bytes),
    }


def _total_bytes_if_known(pids: list[int]) -> int | None:
    """Return the sum of the processes' memory, or None if one of them is unknown."""
    values = [processes.memory_bytes(pid) for pid in pids]
    known = [memory for memory in values if memory is not None]
    return sum(known) if len(known) == len(values) else None
