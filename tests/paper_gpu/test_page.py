"""The page on divided GPUs and with old drivers, through the real NVML client."""

from __future__ import annotations

from tests.paper_gpu.conftest import OnGpus


def test_of_a_divided_gpu_a_run_gets_one_rank_and_one_instance_s_memory(on_gpus: OnGpus) -> None:
    code = """
import json
from ddp_gui.devices import capacity
found = capacity.read()
print(json.dumps([found.num_gpus, found.default_ranks(), found.max_ranks("cuda"), found.gpu_memory_bytes,
                  found.gpu_use()]))
"""
    num_gpus, default, most, memory_bytes, use = on_gpus("A100/3g.40gb+1g.10gb", code)
    assert (num_gpus, default, most) == (2, 1, 1)
    assert 9 * 2**30 < memory_bytes <= 10 * 2**30, "the smaller instance's"
    assert "NCCL does not support ranks that share a GPU" in use
    assert on_gpus("A100x2", code)[1:3] == [2, 2]


def test_the_machine_route_answers_with_an_old_driver(on_gpus: OnGpus) -> None:
    code = """
import json, tempfile
from pathlib import Path
from types import SimpleNamespace
from fastapi import FastAPI
from starlette.testclient import TestClient
from ddp_gui.machine import machine_routes
from ddp_gui.machine.machine_check import MachineChecks
from tests.unit.ddp_gui.machine.test_report import make_report
runs = Path(tempfile.mkdtemp())
app = FastAPI()
report, store = make_report(runs), SimpleNamespace(is_shown=lambda run_id: True)
app.include_router(machine_routes.make_router(report, store, MachineChecks(runs)))
answer = TestClient(app).get("/live/machine")
print(json.dumps([answer.status_code, [gpu["name"] for gpu in answer.json()["gpus"]]]))
"""
    for driver in (470, 580):
        status, names = on_gpus("T4x2", code, driver=driver)
        assert status == 200 and len(names) == 2 and all("T4" in name for name in names), driver
