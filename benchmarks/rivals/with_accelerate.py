"""The same with Hugging Face Accelerate, as in its quick tour."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from benchmarks.rivals import lesson


def main() -> None:
    """Train for the requested number of steps."""
    chosen = lesson.options()
    accelerator = Accelerator(cpu=True)
    set_seed(chosen.seed)
    samples, spec = lesson.load(chosen)
    loss_fn = lesson.criterion(spec)
    plain = lesson.build(chosen, spec)
    model, optimizer, loader = accelerator.prepare(
        plain,
        torch.optim.AdamW(plain.parameters(), lr=chosen.learning_rate, weight_decay=0.0),
        DataLoader(samples, batch_size=chosen.batch_size, shuffle=True),
    )
    notes = lesson.Notes(chosen.out, chosen.steps)

    is_done = False
    while not is_done:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_fn.training_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            is_done = notes.step(loss)
            if is_done:
                break
    notes.write()
    accelerator.end_training()


if __name__ == "__main__":
    main()
