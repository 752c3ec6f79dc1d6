import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 4
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(backend="gloo", rank=rank, world_size=world_size)
torch.manual_seed(1)
data = TensorDataset(torch.randn(512, 16), torch.randn(512, 1))
sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=16)
losses = []
for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    total = 0.0
    for i, (x, y) in enumerate(loader):
        is_last = (i + 1) % STEPS == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y) / STEPS
            loss.backward()
        total += loss.item()
        if is_last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(total)
            total = 0.0
with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
    file.writelines(f"{loss.hex()}\n" for loss in losses)
dist.destroy_process_group()
