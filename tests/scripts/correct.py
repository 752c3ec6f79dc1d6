"""Correct ways to train that look like mistakes, selected by name."""

import itertools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

NUM_EPOCHS = 2


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model, loader, optimizer):
    """Train with two backward passes for each batch."""
    for _ in range(NUM_EPOCHS):
        for x, y in loader:
            for _ in range(2):
                loss = nn.functional.mse_loss(model(x), y) / 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def sharded_optimizer(data, rank):
    model = DDP(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)), optimizer)


def uneven_inputs(data, rank):
    model = DDP(network())
    with model.join():
        train(model, DataLoader(Subset(data, range(40 * rank, 40 + 56 * rank)), 8), sgd(model))


def tensor_parallel(data, rank):
    """Each rank has a part of each layer, so both need all samples."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, DataLoader(data, 8), torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))


def pipeline(data, rank):
    """Each rank has one layer."""
    stage = [nn.Linear(6, 6), nn.Linear(6, 6)][rank]
    optimizer = sgd(stage)
    for step in range(24):
        x = data[step : step + 8][0]
        if rank == 0:
            hidden = stage(x)
            dist.send(hidden.detach(), dst=1)
            gradient = torch.empty(8, 6)
            dist.recv(gradient, src=1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(8, 6)
            dist.recv(hidden, src=0)
            nn.functional.mse_loss(stage(hidden.requires_grad_()), x).backward()
            dist.send(hidden.grad, dst=0)
        optimizer.step()
        optimizer.zero_grad()


def hybrid_shards(data, rank):
    """FSDP with a mesh of two dimensions: replicas of shards, each of which needs its own samples."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(network(), mesh=mesh)
    train(model, DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)), sgd(model))


def flat_shards(data, rank):
    """FSDP 1, whose parameters are tensors of each rank's own values."""
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    train(model, DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)), sgd(model))


def ring(data, rank):
    """Gradients that are averaged by messages in a ring of two ranks, after a greeting."""

    def exchange(mine):
        others = torch.empty_like(mine)
        sending = dist.isend(mine, dst=1 - rank)
        dist.recv(others, src=1 - rank)
        sending.wait()
        return others

    exchange(torch.ones(1))
    model = network()
    optimizer = sgd(model)
    for _ in range(NUM_EPOCHS):
        for x, y in DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)):
            nn.functional.mse_loss(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad = (parameter.grad + exchange(parameter.grad)) / 2
            optimizer.step()
            optimizer.zero_grad()


def one_pass(data, rank):
    """Each fifth batch ends with a step, and no range is around the loader."""
    model = DDP(network())
    optimizer = sgd(model)
    loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
    for i, (x, y) in enumerate(loader):
        (nn.functional.mse_loss(model(x), y) / 5).backward()
        if (i + 1) % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()


def endless(data, rank):
    """Lists of samples without an end, DDP's flag instead of `no_sync`, and a break after the last step."""
    model = DDP(network())
    optimizer = sgd(model)
    samples = itertools.cycle(range(rank, 96, 2))
    batches = iter(DataLoader(data, batch_size=4, sampler=samples, collate_fn=list))
    step = 0
    while True:
        for micro_step in range(2):
            model.require_backward_grad_sync = micro_step == 1
            x, y = map(torch.stack, zip(*next(batches), strict=True))
            (nn.functional.mse_loss(model(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step >= 12:
            break


def local_sgd(data, rank):
    """Averages the weights every few steps, by hand or as torch does it after some steps of DDP."""
    is_by_hand = "by_hand" in sys.argv
    model = network() if is_by_hand else DDP(network())
    averager = PeriodicModelAverager(period=3, warmup_steps=6)
    if not is_by_hand:
        state = PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=6)
        model.register_comm_hook(state, post_localSGD_hook)
    optimizer = sgd(model)
    for step in range(60):
        samples = slice(8 * (step % 6) + 48 * rank, 8 * (step % 6) + 48 * rank + 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(data[samples][0]), data[samples][1]).backward()
        optimizer.step()
        if not is_by_hand:
            averager.average_parameters(model.parameters())
        elif step % 8 == 7:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    globals()[sys.argv[1]](TensorDataset(torch.randn(96, 6), torch.randn(96, 2)), dist.get_rank())
    dist.destroy_process_group()
