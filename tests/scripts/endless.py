"""Trains until it is stopped.

Arguments: `asks` polls should_stop, `saves` saves and loads, `hangs` on rank 1 after five steps.
"""

import sys
import time

import torch
import torch.distributed as dist
import watch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saved = watch.load(model=model, optimizer=optimizer) if "saves" in sys.argv else None
step = saved["step"] if saved else 0
while True:
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    time.sleep(0.01)
    if "saves" in sys.argv:
        watch.save(model=model, optimizer=optimizer, step=step)
    if "asks" in sys.argv and watch.should_stop():
        break
    if "hangs" in sys.argv and step == 5 and dist.get_rank() == 1:
        dist.barrier()
    if step % 20 == 0:
        watch.log(accuracy=min(1.0, step / 1000))
print("stopped at", step)
dist.destroy_process_group()
