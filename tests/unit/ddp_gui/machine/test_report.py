"""Tests of the Machine page's report: owners of processes, disk forecast, and missing parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ddp_gui.background.loop_delay import LoopDelay
from ddp_gui.devices.capacity import Owners
from ddp_gui.devices.disk import DiskForecast
from ddp_gui.machine import machine_routes, missing
from ddp_gui.machine.communication import CommunicationChecks, LinkChecks
from ddp_gui.machine.machine_check import MachineChecks
from ddp_gui.machine.report import MachineReport
from ddp_gui.plan.catalogue import CatalogueError
from ddp_gui.plan.package_install import describe_missing
from tests.harness import wait_until
from tests.unit.fake_gpus import FakeGpu, OldNvml
from trainers.engines.local.engine import LocalEngine
from trainers.machine import nvml
from trainers.machine.cuda_environment import Obstacle
from trainers.machine.host import Reading
from trainers.machine.nvml import GpuProcess

SLEEP = "import time; time.sleep(600)"
SLEEPING_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"


def test_the_disk_lasts_as_long_as_free_space_by_rate_over_the_span_that_is_said() -> None:
    forecast = DiskForecast()
    assert forecast.sample(1)["state"] == "measuring"
    forecast.add({}, 0.0)
    assert forecast.sample(1)["state"] == "no_run"
    for now_s, size in ((100.0, 5_000_000), (120.0, 5_400_000), (140.0, 9_000_000)):
        forecast.add({"run-1": size}, now_s)
    found = forecast.sample(10**9)
    assert found["state"] == "lasts"
    assert found["bytes_per_s"] == 100_000
    assert found["measured_over_s"] == 40
    assert found["lasts_s"] == 10_000


@pytest.fixture
def run_process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that looks like a rank of run-1, with a child that does not."""
    (tmp_path / "runs" / "run-1").mkdir(parents=True)
    command = [sys.executable, "-c", SLEEPING_CHILD, "-m", "trainers.worker", "runs/run-1"]
    process = subprocess.Popen(command, cwd=tmp_path)
    yield process
    for child in psutil.Process(process.pid).children():
        child.kill()
    process.kill()
    process.wait()


def test_a_run_owns_its_process_and_children(tmp_path: Path, run_process: subprocess.Popen[bytes]) -> None:
    owners = Owners(tmp_path / "runs")
    live = wait_until("both processes", lambda: len(owners.live_runs().get("run-1", [])) == 2, 60)
    assert live
    (first, child) = sorted(owners.live_runs()["run-1"])
    assert first == run_process.pid
    assert owners.run_of(child) == "run-1", "found by its parent"
    assert owners.run_of(os.getpid()) is None
    assert Owners(tmp_path / "other").live_runs() == {}, "runs of another folder are not ours"
    assert owners.run_of(2**22 + 1) is None, "a process that cannot be seen is nobody's"


def test_no_driver_is_explained_by_what_is_in_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "all_gpus", dict)
    for problem, cards, words, is_problem in (
        ("no_driver", 0, "No NVIDIA card was found", False),
        ("no_driver", 2, "There are 2 NVIDIA cards", True),
        ("mismatch", 1, "Restart the machine", True),
        ("no_library", 1, "the page finds no GPU", True),
    ):
        monkeypatch.setattr(nvml, "nvml_problem", lambda problem=problem: problem)
        monkeypatch.setattr(nvml, "num_nvidia_cards", lambda cards=cards: cards)
        (found,) = missing.gpus()
        assert words in found.meaning
        assert found.is_problem is is_problem


def test_silent_gpus_and_a_torch_without_cuda_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "all_gpus", lambda: {3: None})
    monkeypatch.setattr(nvml, "nvml_problem", lambda: None)
    monkeypatch.setattr(missing, "installed_version", lambda package: "2.13.0+cpu")
    (silent,) = missing.gpus()
    assert silent.what == "GPU 3 does not answer"
    for_cpus = Obstacle(reason="This torch (2.13.0+cpu) was built for CPUs only.", remedy="Install one: pip")
    (torch,) = missing.unusable(for_cpus)
    assert torch.command is not None and torch.command.endswith("/run.sh --torch-build auto")
    assert for_cpus.reason in torch.meaning
    monkeypatch.setattr(missing, "installed_version", lambda package: "2.13.0")
    (driver,) = missing.unusable(Obstacle(reason="The driver is too old.", remedy="Install another."))
    assert driver.command is None
    assert driver.meaning == "The driver is too old. Install another. Then restart the page."
    assert missing.unusable(None) == []


def test_absent_packages_come_with_the_exact_command(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements-finetune.txt"
    requirements.write_text("# words\npytest==1\nno-such-package-1==5.23.0\nno-such-package-2==1.0\n")
    (found,) = missing.finetune_packages(requirements)
    assert found.what == "Packages for fine-tuning: no-such-package-1, no-such-package-2"
    assert found.command == f"{sys.executable} -m pip install -r {requirements}"
    requirements.write_text("pytest==1\n")
    assert missing.finetune_packages(requirements) == []
    assert missing.FINETUNE_REQUIREMENTS.is_file()


def test_data_sets_and_broken_plugins_come_from_the_catalogue() -> None:
    led_up = {"name": "names", "label": "Names", "how": "Names (2 MB); get them with: pip install faker"}
    both = {"name": "m", "label": "M", "how": "Digits; get them with: npm install m. Without npm: pip x"}
    plain = {"name": "p", "label": "P", "how": "Ask the teacher."}
    names, m, p = map(describe_missing, (led_up, both, plain))
    assert (names.meaning, names.command) == ("Names (2 MB).", f"{sys.executable} -m pip install faker")
    assert (m.meaning, m.command) == ("Digits. Without npm: pip x", "npm install m")
    assert (p.meaning, p.command) == ("Ask the teacher.", None)
    (broken,) = missing.broken_plugins(({"module": "models.x", "message": "No module named 'y'"},))
    assert (broken.what, broken.is_problem) == ("Broken: models.x", True)
    assert broken.meaning.startswith("No module named 'y'. ")


def test_a_full_disk_and_small_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used = SimpleNamespace(total=64 * 10**6, free=2_140_000_000)
    monkeypatch.setattr(missing.shutil, "disk_usage", lambda folder: used)
    (little,) = missing.little_disk(tmp_path)
    (small,) = missing.small_shared_memory(tmp_path)
    assert "Only 2.1 GB are left" in little.meaning and little.is_problem
    assert "has 64 MB" in small.meaning and small.command is not None
    assert missing.small_shared_memory(tmp_path / "absent") == []
    used.total, used.free = 10**12, 10**11
    assert missing.little_disk(tmp_path) == missing.small_shared_memory(tmp_path) == []


def test_the_report_is_json_and_says_who_uses_a_made_up_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_process: subprocess.Popen[bytes]
) -> None:
    ours = GpuProcess(pid=run_process.pid, memory_used_bytes=7)
    theirs = GpuProcess(pid=os.getpid(), memory_used_bytes=None)
    unseen = GpuProcess(pid=2**22 + 1, name="game")
    monkeypatch.setattr(nvml, "all_gpus", lambda: {0: "handle", 1: None})
    monkeypatch.setattr(nvml, "visible_gpus", list)
    monkeypatch.setattr(nvml, "read_gpu", lambda handle: Reading(name="Fake", utilization_percent=12.0))
    monkeypatch.setattr(nvml, "gpu_processes", lambda handle: [ours, theirs, unseen])
    report = make_report(tmp_path / "runs")
    monkeypatch.setattr(nvml, "sees_all_processes", lambda: True)
    found = wait_until("the run", lambda: _with_runs(report), 60)
    assert json.loads(json.dumps(found)) == found
    first, silent = found["gpus"]
    assert [user["run_id"] for user in first["processes"]] == ["run-1", None, None]
    assert [user["name"] for user in first["processes"]][2] == "game"
    assert first["processes"][1]["user"] is not None
    assert (first["answers"], first["utilization_percent"], first["power_watts"]) == (True, 12.0, None)
    assert (silent["answers"], silent["processes"], silent["name"]) == (False, None, None)
    assert found["runs"][0]["run_id"] == "run-1" and found["runs"][0]["memory_bytes"] > 0
    assert found["memory"]["runs_bytes"] == found["runs"][0]["memory_bytes"]
    assert found["disk"]["forecast"]["state"] == "measuring"
    assert found["missing"][0]["what"] == "The catalogue", "what is broken comes first"
    assert report.sample() is report.sample(), "people who look at once share one report"
    monkeypatch.setattr(nvml, "gpu_processes", lambda handle: [])
    assert report._gpu(0, "handle")["processes"] == []
    monkeypatch.setattr(nvml, "sees_all_processes", lambda: False)
    assert report._gpu(0, "handle")["processes"] is None, "from inside a container nobody's absence is seen"


def test_with_a_driver_before_510_the_route_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: NVMLLibraryMismatchError, which is not an NVMLError, caused status 500."""
    pids = (os.getpid(),)
    monkeypatch.setattr(nvml, "_nvml", lambda: OldNvml([FakeGpu(uuid="GPU-a", pids=pids)]))
    monkeypatch.setattr(nvml, "_nvml_and_problem", lambda: (None, None, ""))
    monkeypatch.setattr(nvml, "sees_all_processes", lambda: True)
    report = make_report(tmp_path / "runs")
    store: Any = SimpleNamespace(is_shown=lambda _run_id: True)
    app = FastAPI()
    app.include_router(machine_routes.make_router(report, store, MachineChecks(tmp_path / "runs")))
    answer = TestClient(app).get("/live/machine")
    assert answer.status_code == 200, answer.text
    (gpu,) = answer.json()["gpus"]
    assert [user["pid"] for user in gpu["processes"]] == [*pids]
    assert gpu["utilization_percent"] is None
    (telemetry,) = [item for item in missing.gpus() if item.what == "GPU telemetry"]
    assert "GPU telemetry is not available: utilization" in telemetry.meaning
    assert "470.256.02" in telemetry.meaning


def make_report(runs_dir: Path) -> MachineReport:
    """Return a report on a folder whose catalogue cannot be loaded."""

    def fail() -> None:
        raise CatalogueError("no answer")

    catalogue: Any = SimpleNamespace(get=fail)
    engine = LocalEngine()
    checks = (CommunicationChecks(), MachineChecks(runs_dir))
    return MachineReport(runs_dir, catalogue, *checks, engine, LinkChecks(engine), LoopDelay())


def _with_runs(report: MachineReport) -> dict[str, object] | None:
    found = report.sample()
    return found if found["runs"] and found["missing"] else None
