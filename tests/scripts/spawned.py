import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def train(rank, world_size):
    setup(rank, world_size)
    torch.manual_seed(rank)
    model = DDP(nn.Linear(10, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
        for _ in range(40):
            optimizer.zero_grad()
            outputs = model(torch.randn(20, 10))
            loss = nn.functional.mse_loss(outputs, torch.randn(20, 5))
            loss.backward()
            optimizer.step()
            file.write(f"{loss.item().hex()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = 2
    mp.spawn(train, args=(world_size,), nprocs=world_size, join=True)
    print("all ranks done")
