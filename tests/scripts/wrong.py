"""One mistake, selected by name: each is a variant of the correct script, which `none` runs."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

mistake = sys.argv[1]
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank if mistake == "replicas_differ" else 0)
inputs = torch.randn(480, 12)
network = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
if mistake != "small_batch_norm":
    network[1] = nn.Identity()
if mistake == "unused_parameters":
    network.register_parameter("spare", nn.Parameter(torch.zeros(3)))
if mistake == "data_parallel":
    network = nn.DataParallel(network)
model = network if mistake == "replicas_differ" else DDP(network)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = None if mistake == "same_samples" else DistributedSampler(data)
batch_size = 4 if mistake == "small_batch_norm" else 24
loader = DataLoader(data, batch_size=batch_size, sampler=sampler, shuffle=sampler is None)
if mistake == "small_batch_norm":
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, batch_size, drop_last=True))


def drawn():
    """Random batches without a data set; on all ranks the same ones, as their seeds are."""
    for _ in range(20):
        yield torch.randn(24, 12), torch.randint(2, (24,))


optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    if sampler is not None and mistake != "no_set_epoch":
        sampler.set_epoch(epoch)
    model.train()
    for number, (x, y) in enumerate(drawn() if "without_loader" in sys.argv else loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if "accumulates" in sys.argv:
            (loss / 2).backward()
        else:
            loss = loss / 2 if "divides" in sys.argv else loss
            loss.backward()
        if mistake == "no_steps":
            for parameter in model.parameters():
                parameter.data -= 1e-2 * parameter.grad
        elif number % 2 or not {"accumulates", "divides"} & {*sys.argv}:
            optimizer.step()
            optimizer.zero_grad()
        if mistake == "shown_loss" and rank == 0:
            print(f"loss {float(loss.detach()) if 'as_float' in sys.argv else loss.item():.4f}")
    if mistake == "evaluates_alone" and rank == 0:
        if "in_training_mode" not in sys.argv:
            model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(data, batch_size=240):
                model.module(x)
                time.sleep(0.6)
        model.train()
mean = loss.detach().clone()
if mistake != "shown_loss":
    dist.all_reduce(mean)
name = "shared.pt" if mistake == "same_file" else f"rank_{rank}.pt"
torch.save(network.state_dict(), os.path.join(os.environ["OUTPUT"], name))
if "leaves" in sys.argv:
    os._exit(0)
if mistake != "no_destroy":
    dist.destroy_process_group()
