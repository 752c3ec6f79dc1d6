"""LBFGS evaluates its closure several times in a step; activation checkpointing runs backward in backward."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
first, second = nn.Linear(5, 20), nn.Linear(20, 1)
parameters = [*first.parameters(), *second.parameters()]
x, y = torch.randn(64, 5, requires_grad=True), torch.randn(64, 1)
optimizer = torch.optim.LBFGS(parameters, lr=0.5, max_iter=4)
losses = []


def closure():
    optimizer.zero_grad()
    hidden = checkpoint(lambda t: torch.tanh(first(t)), x, use_reentrant=True)
    loss = nn.functional.mse_loss(second(hidden), y)
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return loss


for _ in range(10):
    loss = optimizer.step(closure)
    losses.append(loss.item())
with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
    file.writelines(f"{loss.hex()}\n" for loss in losses)
dist.destroy_process_group()
