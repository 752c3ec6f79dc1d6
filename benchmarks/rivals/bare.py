"""A DDP script as in tutorials: torchrun … -m benchmarks.rivals.bare --model mlp …"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.rivals import lesson


def main() -> None:
    """Train for the requested number of steps."""
    chosen = lesson.options()
    dist.init_process_group("gloo")
    torch.manual_seed(chosen.seed)
    samples, spec = lesson.load(chosen)
    loss_fn = lesson.criterion(spec)
    sampler: DistributedSampler[object] = DistributedSampler(samples, seed=chosen.seed)
    loader = DataLoader(samples, batch_size=chosen.batch_size, sampler=sampler)
    model = DistributedDataParallel(lesson.build(chosen, spec))
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.learning_rate, weight_decay=0.0)
    notes = lesson.Notes(chosen.out, chosen.steps)

    epoch, is_done = 0, False
    while not is_done:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_fn.training_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            is_done = notes.step(loss)
            if is_done:
                break
        epoch += 1
    notes.write()
    del model, optimizer, loss
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
