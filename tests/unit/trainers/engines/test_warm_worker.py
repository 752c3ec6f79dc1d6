"""A standby rank makes no CUDA calls, and a rank on the CPU sees no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import REPOSITORY
from tests.unit.fake_cuda_build import calls_of
from trainers.engines.local.torchrun import STORE
from trainers.machine import hardware

GET_READY = """
from trainers.warm import warm_worker as standing_by
hardware.may_have_gpu = lambda: sys.argv[1] == "a GPU"
standing_by.get_ready()
"""
# The order of a standby rank and its first step.
BE_OF_A_RUN = """
from trainers.parallel import process_group as distributed
os.environ.update(json.loads(sys.argv[2]))
assert distributed.join(sys.argv[3]).device.type == "cpu"
network = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(network.parameters())
network(torch.zeros(2, 4)).sum().backward()
optimizer.step()
"""
ONLY_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.slow
def test_beside_a_gpu_a_waiting_rank_only_imports() -> None:
    assert calls_of(GET_READY, "a GPU") == []


@pytest.mark.slow
def test_a_step_on_the_cpu_would_open_the_gpu_hence_none_is_taken_beside_one() -> None:
    """If this test fails, torch has changed, and a standby rank may run its step everywhere."""
    called = [name for name, _ in calls_of(GET_READY, "no GPU")]
    assert called[:2] == ["backward", "step"]
    assert "_accelerator_getStream" in called, "what AdamW asks of the GPU, with all its tensors on the CPU"


@pytest.mark.parametrize(
    ("script", "order", "device"),
    [
        (GET_READY + BE_OF_A_RUN, '{"CUDA_VISIBLE_DEVICES": ""}', "auto"),
        (BE_OF_A_RUN, "{}", "cpu"),
    ],
    ids=["it waited, and the page hides the GPUs", "by hand"],
)
@pytest.mark.slow
def test_whenever_a_rank_on_the_cpu_calls_cuda_it_sees_no_gpu(
    tmp_path: Path, script: str, order: str, device: str
) -> None:
    variables = ONLY_RANK | {STORE: str(tmp_path / "store")}
    called = calls_of(script, "a GPU", order, device, **variables)
    assert "_cuda_getDeviceCount" in [name for name, _ in called], "AdamW does call it"
    assert {visible for _, visible in called} == {""}


def test_signs_of_a_gpu_are_its_driver_its_files_and_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_DEVICE_FILES", ())
    monkeypatch.setattr(hardware, "num_nvidia_cards", lambda: 0)
    monkeypatch.setattr(hardware, "num_gpus", lambda: 0)
    assert not hardware.may_have_gpu()
    monkeypatch.setattr(hardware, "_DEVICE_FILES", (REPOSITORY,))
    assert hardware.may_have_gpu(), "a driver whose card is on no bus, as in Linux within Windows"
    monkeypatch.setattr(hardware, "_DEVICE_FILES", ())
    monkeypatch.setattr(hardware, "num_nvidia_cards", lambda: 1)
    assert hardware.may_have_gpu()
