"""Two wrapped models and a parameter without dimensions; at the end the first has unused parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        self.num_used = len(self.layers)

    def forward(self, x):
        for layer in self.layers[: self.num_used]:
            x = torch.tanh(layer(x)) * self.scale
        return x


dist.init_process_group("gloo")
torch.manual_seed(0)
encoder, head = DDP(Encoder()), DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
for step in range(15):
    if step == 12:
        encoder.module.num_used = 2
        first = (encoder.module.scale * torch.ones(3)).unbind(0)[0]
        with torch.no_grad():
            first._base.add_(1)
        first.tolist()
    if step == 3 and dist.get_rank() == 0:
        torch.save(obj=head.state_dict(), f="head.pt")
    loss = head(encoder(torch.randn(8, 4))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
