"""Backward passes whose gradients are zeroed before the step, gradients by `grad`, and a look at a batch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 8), torch.randint(2, (160,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=20, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []


def attack(x, y):
    x = x.clone().requires_grad_()
    nn.functional.cross_entropy(model(x), y).backward()
    return (x + 0.1 * x.grad.sign()).detach()


def climb(x, y):
    """Move the weights as the first pass of SAM does; return those before."""
    nn.functional.cross_entropy(model(x), y).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data += 0.05 * parameter.grad
    model.zero_grad()
    return before


for epoch in range(3):
    sampler.set_epoch(epoch)
    print("samples of a batch:", len(next(iter(loader))[0]))
    for x, y in loader:
        before = climb(x, y) if epoch == 1 else None
        x = attack(x, y) if epoch == 0 else x
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if epoch == 2:
            for parameter, gradient in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                parameter.grad = gradient
        else:
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for parameter, value in zip(model.parameters(), before or (), strict=False):
            parameter.data = value
        optimizer.step()
        losses.append(loss.detach())
with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
    file.writelines(f"{loss.item().hex()}\n" for loss in losses)
dist.destroy_process_group()
