import os

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
generator = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
critic = DDP(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)))
critic_optimizer = optim.Adam(critic.parameters(), lr=1e-3)
generator_optimizer = optim.Adam(generator.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
losses = []
for _ in range(16):
    real, noise = torch.randn(32, 2), torch.randn(32, 4)
    fake = generator(noise)
    critic_optimizer.zero_grad()
    # DDP requires one forward pass for each backward pass.
    scores = critic(torch.cat([real, fake.detach()]))
    critic_loss = criterion(scores, torch.cat([torch.ones(32, 1), torch.zeros(32, 1)]))
    critic_loss.backward()
    critic_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(critic.module(fake), torch.ones(32, 1))
    generator_loss.backward()
    generator_optimizer.step()
    losses.append(critic_loss.item())
with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
    file.writelines(f"{loss.hex()}\n" for loss in losses)
dist.destroy_process_group()
