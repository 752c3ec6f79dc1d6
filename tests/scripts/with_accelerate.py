import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    x = torch.randn(256, 20)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses, total = [], 0.0
    for epoch in range(3):
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.item() / 2
            if accelerator.sync_gradients:
                losses.append(total)
                total = 0.0
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"epoch {epoch}: {mean.item():.4f}")
    with open(f"{os.environ['LOSSES']}.{accelerator.process_index}", "w") as file:
        file.writelines(f"{loss.hex()}\n" for loss in losses)
    accelerator.end_training()


if __name__ == "__main__":
    main()
