"""Mistakes and forms of them, selected by name: variants of the correct script, which runs without a name."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

mistakes = {*sys.argv[1:]}
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank if "replicas_differ" in mistakes else 0)
inputs = torch.randn(480, 12)
network = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
if "small_batch_norm" not in mistakes:
    network[1] = nn.Identity()
if "unused_parameters" in mistakes:
    network.register_parameter("spare", nn.Parameter(torch.zeros(3)))
if "data_parallel" in mistakes:
    network = nn.DataParallel(network)
model = network if "replicas_differ" in mistakes else DDP(network)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = None if "same_samples" in mistakes else DistributedSampler(data)
batch_size = 4 if "small_batch_norm" in mistakes else 24
loader = DataLoader(data, batch_size=batch_size, sampler=sampler, shuffle=sampler is None)
if "small_batch_norm" in mistakes:
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, batch_size, drop_last=True))


def drawn():
    """Random batches without a data set; on all ranks the same ones, as their seeds are."""
    for _ in range(20):
        yield torch.randn(24, 12), torch.randint(2, (24,))


optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    if sampler is not None and "no_set_epoch" not in mistakes:
        sampler.set_epoch(epoch)
    model.train()
    for number, (x, y) in enumerate(drawn() if "without_loader" in mistakes else loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if "accumulates" in mistakes:
            (loss / 2).backward()
        else:
            loss = loss / 2 if "divides" in mistakes else loss
            loss.backward()
        if "no_steps" in mistakes:
            for parameter in model.parameters():
                parameter.data -= 1e-2 * parameter.grad
        elif number % 2 or not {"accumulates", "divides"} & mistakes:
            optimizer.step()
            optimizer.zero_grad()
        if "shown_loss" in mistakes and rank == 0:
            print(f"loss {float(loss.detach()) if 'as_float' in mistakes else loss.item():.4f}")
    if "evaluates_alone" in mistakes and rank == 0:
        if "in_training_mode" not in mistakes:
            model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=240):
                model.module(x)
                time.sleep(0.6)
        model.train()
mean = loss.detach().clone()
if "shown_loss" not in mistakes:
    dist.all_reduce(mean)
name = "shared.pt" if "same_file" in mistakes else f"rank_{rank}.pt"
torch.save(network.state_dict(), os.path.join(os.environ["OUTPUT"], name))
if "leaves" in mistakes:
    os._exit(0)
if "no_destroy" not in mistakes:
    dist.destroy_process_group()
