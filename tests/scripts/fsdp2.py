import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
    for _ in range(25):
        loss = nn.functional.cross_entropy(model(torch.randn(12, 16)), torch.randint(0, 4, (12,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        file.write(f"{loss.item().hex()}\n")
dist.destroy_process_group()
