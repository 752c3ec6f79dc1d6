"""Requests a GPU in many ways; none has an effect on CPU ranks."""

import os
import pickle

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.cuda.manual_seed(0)
torch.manual_seed(0)
device = torch.device("cuda", local_rank)
dist.init_process_group("nccl", device_id=device)
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
group = dist.new_group([0, 1], backend="nccl")
generator = torch.Generator(device="cuda")
assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
assert pickle.loads(pickle.dumps(generator)).initial_seed() == generator.initial_seed()
assert torch.rand(1, generator=generator, device="cuda").device.type == "cpu"
with torch.device("cuda"):
    sharded = nn.Linear(2, 2)
with torch.device("meta"):
    assert nn.Linear(2, 2).weight.is_meta
sharded = FullyShardedDataParallel(sharded, device_id=local_rank)  # of the rank's GPU
if hasattr(torch, "accelerator"):
    assert torch.accelerator.current_accelerator().type == "cuda"
assert torch.cuda.get_device_properties(0).name == torch.cuda.get_device_name()
assert torch.cuda.get_device_capability() < (7, 0)
assert init_device_mesh("cuda", (2,)).device_type == "cpu"
with torch.cuda.device(local_rank), torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.nvtx.range_push("part")
    torch.cuda.nvtx.range_pop()
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda(local_rank)
weight = torch.ones(3, device="cuda")
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), pin_memory=True)
model = DDP(model, device_ids=[local_rank], output_device=local_rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
begin = torch.cuda.Event(enable_timing=True)
end = torch.cuda.Event(enable_timing=True)


def finish(event: torch.cuda.Event | None = None) -> bool:
    event.record(stream=None)
    event.wait()
    return isinstance(event, torch.cuda.Event)


begin.record()
for x, y in loader:
    x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y, weight=weight)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
assert finish(end)
torch.cuda.synchronize()
assert begin.elapsed_time(end) > 0
print("peak", torch.cuda.max_memory_allocated())
state = {"model": model.module.state_dict()}
torch.save(state, f"{local_rank}.pt")
torch.load(f"{local_rank}.pt", map_location=lambda storage, _: storage.cuda(local_rank))
dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG, group=group)
dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()
