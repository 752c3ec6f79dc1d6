"""The same with Lightning, with its default logging, progress bar and checkpoints."""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.rivals import lesson
from trainers.data.dataset import DataSpec


class Lesson(lightning.LightningModule):  # type: ignore[misc]
    """The catalogue's network as a LightningModule."""

    def __init__(self, network: nn.Module, spec: DataSpec, learning_rate: float, notes: lesson.Notes) -> None:
        super().__init__()
        self._network = network
        self._loss_fn = lesson.criterion(spec)
        self._learning_rate = learning_rate
        self._notes = notes

    def training_step(self, batch: tuple[Tensor, Tensor], _batch_index: int) -> Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = self._loss_fn.training_loss(self._network(inputs), targets)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, _batch: object, _batch_index: int) -> None:
        """Record the end of a step."""
        self._notes.step(outputs["loss"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self._learning_rate, weight_decay=0.0)


def main() -> None:
    """Train for the requested number of steps."""
    chosen = lesson.options()
    lightning.seed_everything(chosen.seed, verbose=False)
    samples, spec = lesson.load(chosen)
    notes = lesson.Notes(chosen.out, chosen.steps)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=chosen.steps,
        max_epochs=-1,
        default_root_dir=chosen.out.parent,
    )
    loader = DataLoader(samples, batch_size=chosen.batch_size, shuffle=True)
    trainer.fit(Lesson(lesson.build(chosen, spec), spec, chosen.learning_rate, notes), loader)
    notes.write()


if __name__ == "__main__":
    main()
