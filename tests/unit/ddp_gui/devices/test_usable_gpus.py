"""Tests of the usable GPUs: those that torch can use, by UUID, or the reason for none. The driver is fake."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.background import trainer_process
from ddp_gui.background.trainer_process import AskError
from ddp_gui.devices import capacity
from ddp_gui.machine import missing
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.queue.policy import QueueDevices
from ddp_gui.train.form import Form
from tests.unit.fake_gpus import FakeGpu, FakeNvml
from trainers.contract.config import ConfigError
from trainers.machine import cuda_environment, facilities, nvml
from trainers.machine.cuda_environment import Obstacle

FIRST = FakeGpu(uuid="GPU-aaaa1111")
SECOND = FakeGpu(uuid="GPU-bbbb1111", name="NVIDIA Slower")
OBSTACLE = Obstacle(reason="NVIDIA's driver is too old.", remedy="Install driver 580 or newer.")
GOOD = {"uuids": [SECOND.uuid], "left_out": [], "obstacle": None}
BAD = {"uuids": [], "left_out": [], "obstacle": vars(OBSTACLE)}


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables after each test."""
    for name in (cuda_environment.VISIBLE, cuda_environment.ORDER, cuda_environment.OBSTACLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def use(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    monkeypatch.setattr(nvml, "_nvml", lambda: FakeNvml(gpus))
    monkeypatch.setattr(nvml, "nvml_problem", lambda: None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the answers of the process that queries torch, for the test to fill; each query pops one."""
    answers: list[Any] = []

    def ask(module: str, *, sees_gpus: bool) -> dict[str, Any]:
        assert module == "trainers.parallel.usable_gpus" and sees_gpus
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    monkeypatch.setattr(trainer_process, "ask", ask)
    return answers


def test_the_page_and_its_jobs_see_gpus_by_uuid(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    """An index in CUDA's own order refers to the GPU that CUDA reports: here the second one."""
    use(monkeypatch, FIRST, SECOND)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    asked.append(GOOD)
    capacity.restrict_to_usable_gpus(None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == SECOND.uuid
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    here = capacity.read()
    assert (here.num_gpus, here.gpu_names) == (1, ("NVIDIA Slower",))
    assert missing.find_unclear_gpus(1) == []


def test_a_failed_asking_is_told_by_its_last_line_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FIRST)
    asked.append(
        AskError("x could not be read:\nTraceback (most recent call last):\n  File ...\nOSError: no libcuda")
    )
    capacity.restrict_to_usable_gpus(None)
    found = capacity.read().gpu_obstacle
    assert found is not None and found.reason == "torch could not list its GPUs: OSError: no libcuda."
    assert found.remedy.startswith("Restart the page")
    said = capsys.readouterr().out
    assert said.startswith("Asking torch which GPUs it can use") and "Traceback" in said, (
        "the terminal says all"
    )


@pytest.fixture
def unusable(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> capacity.Machine:
    use(monkeypatch, FIRST, SECOND)
    asked.append(BAD)
    capacity.restrict_to_usable_gpus(None)
    return capacity.read()


def test_the_form_plans_cpu_ranks_and_says_why(unusable: capacity.Machine, catalogue: Catalogue) -> None:
    assert unusable.device_kind("auto") == "cpu" and unusable.default_ranks() == 2
    assert "GPUs here cannot be used" in unusable.describe()
    assert OBSTACLE.reason in unusable.describe() and OBSTACLE.remedy in unusable.describe()
    planned = plan.make(plan.parse({"batch_size": 10}, unusable), catalogue, unusable)
    assert planned.device_kind == "cpu"
    with pytest.raises(
        ConfigError, match=r"device.*no GPU of this machine can be used.*too old.*580 or newer"
    ):
        plan.make(plan.parse({"device": "cuda", "nproc_per_node": 1}, unusable), catalogue, unusable)
    label, words = Form(catalogue, unusable)._label_and_help(
        "nproc_per_node", plan.config_module.settings()["name"]
    )
    assert label.startswith("CPU ranks") and words.startswith("The GPUs here cannot be used")


def test_machine_and_queue_say_why_too(unusable: capacity.Machine, tmp_path: Path) -> None:
    (found,) = [item for item in missing.gpus() if item.is_problem]
    assert OBSTACLE.reason in found.meaning
    now = QueueDevices(tmp_path, None).sample()
    assert now.gpus == () and now.note is not None and OBSTACLE.remedy in now.note


def test_a_container_cannot_see_others_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, FIRST)
    monkeypatch.setattr(facilities, "read_link", lambda _path: "pid:[4026531836]")
    assert QueueDevices(tmp_path, None).sample().note is None and missing.find_unclear_gpus(1) == []
    monkeypatch.setattr(facilities, "read_link", lambda _path: "pid:[4026532198]")
    note = QueueDevices(tmp_path, None).sample().note
    assert note is not None and "a container or in WSL2 and cannot see programs outside of it" in note
    (said,) = missing.find_unclear_gpus(1)
    assert (
        "cannot see programs outside of it" in said.meaning and "WSL2" in said.meaning and not said.is_problem
    )
    assert missing.find_unclear_gpus(0) == [], "where there is no GPU nothing is missing"
    monkeypatch.setattr(facilities, "read_link", lambda _path: "pid:[4026531836]")
    assert nvml.sees_all_processes()
    monkeypatch.setattr(nvml, "_WINDOWS_DRIVER", tmp_path)
    assert not nvml.sees_all_processes(), "in WSL2, whatever its namespace says"


def test_names_by_cudas_own_order_are_said_to_be_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FIRST, SECOND)
    monkeypatch.setattr(nvml, "sees_all_processes", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (said,) = missing.find_unclear_gpus(1)
    assert "by UUID" in said.meaning and said.is_problem
