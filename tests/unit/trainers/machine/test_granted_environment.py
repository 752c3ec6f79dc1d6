"""Child processes of the page see only the GPUs granted to them, by UUID, or none on the CPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_gui.background import trainer_process
from ddp_gui.machine import communication
from ddp_gui.machine.communication import CommunicationCheck
from trainers.contract import config, rundir
from trainers.contract.tickets import Grant, GrantedGpu
from trainers.engines.local import torchrun, torchrun_process
from trainers.engines.local.engine import LocalEngine
from trainers.engines.local.warm_pool import StartRequest
from trainers.machine import cuda_environment

TWO = (GrantedGpu(index=3, uuid="GPU-c"), GrantedGpu(index=0, uuid="GPU-a"))


class Started(Exception):  # noqa: N818 - it is no error
    """Raised in place of starting a process; records its environment."""

    def __init__(self, *command: Any, **options: Any) -> None:
        super().__init__()
        self.visible = options["env"].get("CUDA_VISIBLE_DEVICES")
        self.order = options["env"].get("CUDA_DEVICE_ORDER")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page itself sees all GPUs, and every process start raises `Started`."""
    for name in cuda_environment.OF_A_RUN:
        monkeypatch.delenv(name, raising=False)

    def start(*command: Any, **options: Any) -> None:
        raise Started(*command, **options)

    for module in (trainer_process, communication, torchrun):
        fake = SimpleNamespace(**(vars(module.subprocess) | {"Popen": start, "run": start}))
        monkeypatch.setattr(module, "subprocess", fake)


def granted(*gpus: GrantedGpu) -> Grant:
    return Grant(token="t", granted_unix_s=1.0, gpus=gpus)


@pytest.mark.parametrize(("gpus", "visible"), [(TWO, "GPU-c,GPU-a"), ((), "")], ids=["cuda", "cpu"])
def test_a_run_sees_what_it_was_granted_and_on_the_cpu_nothing(
    tmp_path: Path, gpus: tuple[GrantedGpu, ...], visible: str
) -> None:
    run = rundir.create(tmp_path, config.parse({}))
    with pytest.raises(Started) as cold:
        LocalEngine().start(run, None, granted(*gpus))
    assert (cold.value.visible, cold.value.order) == (visible, "PCI_BUS_ID")
    taken: list[StartRequest] = []
    standby: Any = SimpleNamespace(take=lambda order: taken.append(order) or "taken")
    assert LocalEngine(standby).start_supervisor(run, None, granted(*gpus)) == "taken"
    assert taken[0].environment == {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("visible", ["GPU-c,GPU-a", ""])
def test_a_template_hears_it_with_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    """An empty list of GPUs is passed on, too."""
    run = rundir.create(tmp_path, config.parse({}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    told: list[Any] = []
    template: Any = SimpleNamespace(run=lambda _arguments, _log, variables: told.append(variables) or "taken")
    torchrun_process.start(run, run.read_config(), None, 0, template)
    assert told[0]["CUDA_VISIBLE_DEVICES"] == visible
    assert told[0]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(("backend", "visible"), [("gloo", ""), ("nccl", None)])
def test_a_check_on_cpu_ranks_opens_no_gpu(tmp_path: Path, backend: str, visible: str | None) -> None:
    about = {"check_id": "c", "num_ranks": 2, "arguments": [], "busy_with": (), "started_by": ""}
    check = CommunicationCheck(backend=backend, started_unix_s=1.0, **about)
    with pytest.raises(Started) as started:
        communication._start(check, tmp_path, tmp_path / "said", {})
    assert started.value.visible == visible


def test_what_only_asks_or_looks_at_data_opens_no_gpu() -> None:
    with pytest.raises(Started) as asked:
        trainer_process.ask("trainers.plugins.memory")
    with pytest.raises(Started) as looked:
        trainer_process._run_inspection(partial(trainer_process._spawn, []), 1.0)
    assert asked.value.visible == looked.value.visible == ""
    with pytest.raises(Started) as about_gpus:
        trainer_process.ask("trainers.parallel.usable_gpus", sees_gpus=True)
    assert about_gpus.value.visible is None
