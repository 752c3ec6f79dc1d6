"""Counts of launches, copies, collectives and memory are exact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY
from tests.paper_gpu.conftest import OnGpus

STEP = """
import json, torch, paper_gpu
from torch import nn
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
inputs = torch.randn(16, 32, device="cuda")
def step():
    net(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def difference(work):
    torch.cuda.synchronize()
    before = paper_gpu.counts()
    work()
    after = paper_gpu.counts()
    return {name: after[name] - before[name] for name in after}
for _ in range(3): step()
torch.cuda.reset_peak_memory_stats()
step()
found = {"step": difference(step), "two": difference(lambda: [step(), step()])}
found["peak"] = torch.cuda.max_memory_allocated()
host, pinned = torch.ones(1000), torch.ones(1000).pin_memory()
copies = lambda: [host.cuda(), pinned.cuda(non_blocking=True), inputs.cpu(), inputs.clone()]
found["copies"] = difference(copies)
found["add"] = difference(lambda: inputs + inputs)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def both(build: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, int]]]:
    """Return the counts of a process that computes and of one that only launches."""
    import os

    from tests.paper_gpu import environment

    found = {}
    for computes in ("0", "1"):
        state = tmp_path_factory.mktemp("state")
        variables = environment("H100", build, state, PAPER_COMPUTE=computes)
        done = subprocess.run(
            [sys.executable, "-c", STEP],
            env=os.environ | variables,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        found[computes] = json.loads(done.stdout)
    return found


def test_computing_changes_no_count_of_launches_copies_and_memory(both) -> None:
    def without_operators(counts: dict[str, int]) -> dict[str, int]:
        return {name: number for name, number in counts.items() if not name.startswith("operator")}

    for part in ("step", "two", "copies", "add"):
        assert without_operators(both["0"][part]) == without_operators(both["1"][part])
    assert both["0"]["peak"] == both["1"]["peak"]


def test_a_step_costs_the_same_each_time(both) -> None:
    once, twice = both["1"]["step"], both["1"]["two"]
    assert twice == {name: 2 * number for name, number in once.items()}
    # Two products forward, three backward: the inputs need no gradient.
    assert once["library_launches"] == 5
    assert once["launches"] == once["library_launches"] + once["kernel_launches"] > 10
    assert once["synchronizations"] == once["host_to_device_copies"] == once["uncomputed_launches"] == 0


def test_copies_are_counted_by_direction_and_only_pageable_memory_waits(both) -> None:
    copies = both["1"]["copies"]
    assert (copies["host_to_device_copies"], copies["host_to_device_bytes"]) == (2, 8000)
    assert (copies["device_to_host_copies"], copies["device_to_host_bytes"]) == (1, 16 * 32 * 4)
    assert (copies["device_to_device_copies"], copies["device_to_device_bytes"]) == (1, 16 * 32 * 4)


def test_an_operator_reads_its_arguments_and_writes_its_result(both) -> None:
    add = both["1"]["add"]
    size = 16 * 32 * 4
    assert (add["operators"], add["launches"]) == (1, 1)
    # x + x reads x once.
    assert (add["operator_bytes_read"], add["operator_bytes_written"]) == (size, size)


def test_counts_of_each_rank_survive_a_sudden_end(on_gpus: OnGpus, tmp_path: Path) -> None:
    code = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
dist.all_reduce(torch.ones(1000, device="cuda"))
torch.cuda.synchronize()
if rank == 0: print("0", flush=True)
os._exit(0)
"""
    folder = tmp_path / "counts"
    on_gpus("T4x2", code, num_ranks=2, PAPER_COUNTS=str(folder))
    printed = subprocess.run(
        [sys.executable, "-m", "paper_gpu", str(folder)], capture_output=True, text=True, check=True
    )
    found = json.loads(printed.stdout)
    assert len(found) == 2
    for counts in found.values():
        assert (counts["collectives"], counts["collective_bytes"]) == (1, 4000)
        assert counts["peak_allocated_bytes"] >= 2**21


def test_without_computing_triton_compiles_and_its_launches_are_counted(on_gpus: OnGpus) -> None:
    code = """
import json, torch, paper_gpu
def chain(x): return (x.sin() + 1).cos() * 2
x = torch.ones(4096, device="cuda")
def launches(function):
    function(x)
    torch.cuda.synchronize()
    before = paper_gpu.counts()["launches"]
    function(x)
    return paper_gpu.counts()["launches"] - before
print(json.dumps([launches(chain), launches(torch.compile(chain))]))
"""
    assert on_gpus("H100", code, PAPER_COMPUTE="0") == [4, 1]


@pytest.mark.parametrize(("queue", "waits"), [("4", True), ("1024", False)])
def test_the_host_waits_in_a_launch_when_the_queue_is_full(on_gpus: OnGpus, queue: str, waits: bool) -> None:
    code = """
import json, os, torch
x = torch.ones(4, device="cuda")
torch.cuda.synchronize()
slept = torch.cuda.Event()
torch.cuda._sleep(5 * 10**9)
slept.record()
for _ in range(10): x.add_(1)
print(json.dumps(slept.query()), flush=True)
os._exit(0)
"""
    assert on_gpus("T4", code, PAPER_QUEUE=queue) is waits
