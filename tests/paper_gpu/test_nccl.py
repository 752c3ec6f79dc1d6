"""Collectives of ProcessGroupNCCL between ranks on paper GPUs."""

from __future__ import annotations

import pytest

from tests.paper_gpu.conftest import OnGpus

RANKS = 3
COLLECTIVES = """
import json, os, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
def mine(dtype=torch.float32, number=5):
    return torch.arange(number, device="cuda").to(dtype) + 10 * rank
found = {}
big = 3 * 2**18 + 7  # more than one piece of shared memory, and not a multiple of the ranks
for name, op in {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}.items():
    x = mine(); dist.all_reduce(x, op); found[name] = x.tolist()
for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.float64):
    x = mine(dtype); dist.all_reduce(x); found[str(dtype)] = x.float().tolist()
x = torch.full((5,), 2.0 + rank, device="cuda")
dist.all_reduce(x, dist._make_nccl_premul_sum(0.5)); found["premul"] = x.tolist()
x = mine(number=big); dist.all_reduce(x); found["big"] = [x[0].item(), x[-1].item()]
x = mine(); dist.broadcast(x, 1); found["broadcast"] = x.tolist()
x = mine(); dist.reduce(x, 0); found["reduce"] = x.tolist()
x = torch.empty(size, 2, device="cuda")
dist.all_gather_into_tensor(x, mine(number=2)); found["gather"] = x.tolist()
x = torch.empty(2, device="cuda")
dist.reduce_scatter_tensor(x, mine(number=2 * size)); found["scatter"] = x.tolist()
x = torch.empty(size, device="cuda")
dist.all_to_all_single(x, mine(number=size)); found["all_to_all"] = x.tolist()
received = torch.empty(big, device="cuda")  # larger than a mailbox: both directions have to progress
sends = dist.P2POp(dist.isend, mine(number=big), (rank + 1) % size)
receives = dist.P2POp(dist.irecv, received, (rank - 1) % size)
for work in dist.batch_isend_irecv([sends, receives]): work.wait()
found["ring"] = [received[0].item(), received[-1].item()]
pair = dist.new_group([0, 2])
if rank != 1:
    x = mine(); dist.all_reduce(x, group=pair); found["pair"] = x.tolist()
dist.barrier()
results = [None] * size
dist.all_gather_object(results, found)
if rank == 0: print(json.dumps(results), flush=True)
dist.destroy_process_group()
"""


def test_collectives_give_each_rank_what_nccl_gives(on_gpus: OnGpus) -> None:
    results = on_gpus(f"H100x{RANKS}", COLLECTIVES, num_ranks=RANKS)
    sums = [3 * k + 30 for k in range(5)]
    big = 3 * 2**18 + 7
    for rank, found in enumerate(results):
        assert found["sum"] == sums
        assert found["avg"] == [k + 10 for k in range(5)]
        assert found["max"] == [k + 20 for k in range(5)]
        for dtype in ("float16", "bfloat16", "int64", "float64"):
            assert found[f"torch.{dtype}"] == sums
        assert found["premul"] == [4.5] * 5
        assert found["big"] == [30, 3 * (big - 1) + 30]
        assert found["broadcast"] == [k + 10 for k in range(5)]
        assert found["gather"] == [[10 * r, 10 * r + 1] for r in range(RANKS)]
        assert found["scatter"] == [3 * (2 * rank + k) + 30 for k in range(2)]
        assert found["all_to_all"] == [rank + 10 * r for r in range(RANKS)]
        before = (rank - 1) % RANKS
        assert found["ring"] == [10 * before, big - 1 + 10 * before]
    assert results[0]["reduce"] == sums
    assert results[0]["pair"] == results[2]["pair"] == [2 * k + 20 for k in range(5)]


def test_sync_batch_norm_is_batch_norm_of_the_whole_batch(on_gpus: OnGpus) -> None:
    code = """
import json, os, torch, torch.distributed as dist
from torch import nn
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
whole = torch.randn(8, 3, 4, 4) * 3 + 1
alone = nn.BatchNorm2d(3)
expected_in = whole.clone().requires_grad_()
expected = alone(expected_in)
(expected.sin() * 2).sum().backward()
layer = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3)).cuda()
synced = nn.parallel.DistributedDataParallel(layer, device_ids=[rank])
part = slice(0, 3) if rank == 0 else slice(3, 8)
inputs = whole[part].cuda().requires_grad_()
outputs = synced(inputs)
(outputs.sin() * 2).sum().backward()
def distance(a, b): return (a.cpu() - b).abs().max().item()
worst = max(distance(outputs, expected[part]), distance(inputs.grad, expected_in.grad[part]),
            distance(layer.weight.grad * 2, alone.weight.grad),
            distance(layer.bias.grad * 2, alone.bias.grad),
            distance(layer.running_mean, alone.running_mean),
            distance(layer.running_var, alone.running_var))
every = torch.tensor([worst], device="cuda"); dist.all_reduce(every, dist.ReduceOp.MAX)
if rank == 0: print(json.dumps(every.item()), flush=True)
dist.destroy_process_group()
"""
    assert on_gpus("T4x2", code, num_ranks=2) < 1e-3


@pytest.mark.parametrize("gpus", ["T4x2", "A100/3g.40gb+3g.40gb"])
def test_two_ranks_on_one_gpu_or_on_two_parts_of_it_are_refused(on_gpus: OnGpus, gpus: str) -> None:
    code = """
import json, os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
if "/" in os.environ["PAPER_GPU"]:
    os.environ["CUDA_VISIBLE_DEVICES"] = f"MIG-70617065-7200-000{rank + 1}-0000-000000000000"
torch.cuda.set_device(0)
dist.init_process_group("nccl")
try:
    dist.all_reduce(torch.ones(1, device="cuda"))
except dist.DistBackendError as error:
    if rank == 0: print(json.dumps(str(error)), flush=True)
"""
    assert "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000" in on_gpus(
        gpus, code, num_ranks=2
    )
