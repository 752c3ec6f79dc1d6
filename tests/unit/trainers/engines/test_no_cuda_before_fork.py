"""A fork server makes no CUDA call, and a rank on the CPU sees no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fake_cuda_build import calls_of
from trainers.watch.settings import STORE

# What a fork server does up to the fork of its first rank, with torchrun's own preparations.
UNTIL_THE_FORK = """
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from trainers.engines.local import fork_server

def fork(self):
    print(json.dumps(calls), flush=True)
    os._exit(0)

MultiprocessContext._start = fork
sys.argv = ["fork_server", str(os.getppid()), "--nproc-per-node", "2", "-m", "trainers.worker", "runs/x"]
fork_server.main()
"""
# The environment of a run on the CPU, and a first step.
BE_OF_A_RUN = """
from trainers.parallel import process_group as distributed
os.environ.update(json.loads(sys.argv[1]))
assert distributed.join(sys.argv[2]).device.type == "cpu"
network = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(network.parameters())
network(torch.zeros(2, 4)).sum().backward()
optimizer.step()
"""
ONLY_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.slow
def test_no_cuda_call_precedes_the_fork() -> None:
    assert calls_of(UNTIL_THE_FORK) == []


@pytest.mark.parametrize(
    ("order", "device"),
    [('{"CUDA_VISIBLE_DEVICES": ""}', "auto"), ("{}", "cpu")],
    ids=["the page hides the GPUs", "by hand"],
)
@pytest.mark.slow
def test_whenever_a_rank_on_the_cpu_calls_cuda_it_sees_no_gpu(
    tmp_path: Path, order: str, device: str
) -> None:
    variables = ONLY_RANK | {STORE: str(tmp_path / "store")}
    called = calls_of(BE_OF_A_RUN, order, device, **variables)
    assert "_cuda_getDeviceCount" in [name for name, _ in called], "AdamW does call it"
    assert {visible for _, visible in called} == {""}
