"""Fails on rank 1 in step 3, in a separate function."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def shifted(batch, step, rank):
    if step == 3 and rank == 1:
        raise ValueError("the labels of this batch are missing")
    return batch + step


dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    loss = model(shifted(torch.ones(2, 4), step, dist.get_rank())).mean()
    loss.backward()
    optimizer.step()
