import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(4096, 512)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler, pin_memory=True)
    network = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 2)).cuda()
    model = DDP(network, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            inputs, targets = inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if "--reads" in sys.argv:
                print(f"loss {loss:.4f}", loss.detach().cpu())
        print(f"rank {rank} epoch {epoch} done")
    with open(f"{os.environ['LOSSES']}.{rank}", "w") as file:
        file.writelines(f"{loss.item().hex()}\n" for loss in losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
