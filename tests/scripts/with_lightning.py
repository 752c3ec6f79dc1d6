import os

import lightning as L  # noqa: N812 - as in its documentation
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
        self.losses = []

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.network(inputs), targets)
        self.log("train_loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("val_loss", nn.functional.cross_entropy(self.network(inputs), targets), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def main():
    L.seed_everything(0)
    x = torch.randn(320, 20)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    train, val = torch.utils.data.random_split(data, [256, 64])
    model = Classifier()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(train, batch_size=8, shuffle=True), DataLoader(val, batch_size=8))
    with open(f"{os.environ['LOSSES']}.{trainer.global_rank}", "w") as file:
        file.writelines(f"{loss.hex()}\n" for loss in model.losses)


if __name__ == "__main__":
    main()
