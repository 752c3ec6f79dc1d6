"""Requests NCCL and GPUs, with a hard-coded port and world size; no sampler and no seed."""

import os

import torch
import torch.distributed as dist
from torch import nn, optim

WORLD_SIZE = 2
RANK = int(os.environ["RANK"])
dist.init_process_group(backend="nccl", rank=RANK, world_size=WORLD_SIZE, init_method="tcp://localhost:12355")


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 2)

    def forward(self, x):
        return self.fc(x)


model = Small().to(f"cuda:{RANK}")
ddp_model = nn.parallel.DistributedDataParallel(model, device_ids=[RANK])
data = torch.randn(64, 10).to(f"cuda:{RANK}")
labels = torch.randint(0, 2, (64,)).to(f"cuda:{RANK}")
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(ddp_model.parameters(), lr=0.01)
for epoch in range(20):
    optimizer.zero_grad()
    loss = criterion(ddp_model(data), labels)
    loss.backward()
    optimizer.step()
    if RANK == 0:
        print(f"Epoch {epoch + 1}, Loss: {loss.item():.4f}")
dist.destroy_process_group()
