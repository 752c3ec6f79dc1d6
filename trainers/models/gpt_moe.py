"""GPT with a mixture of experts in its dense layers (Shazeer et al. 2017; Fedus et al. 2021, "Switch")."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.data import LANGUAGE_MODELLING, DataSpec
from trainers.models.gpt import Embedding, Head, Shape
from trainers.models.networks import transformer
from trainers.models.networks.transformer import Block, Dense
from trainers.registry import ModelOptions, register_model

SHAPES = {"small": Shape(2, 4, 128), "medium": Shape(6, 6, 384)}
NUM_EXPERTS = 4
NUM_CHOSEN = 2


class Experts(nn.Module):
    """Several dense layers (experts), of which a gate chooses two for each token.

    In training, all experts compute all tokens, and a weight of 0 drops the tokens of experts that were not
    chosen. This is exact, has the same shapes in every step, and gives each expert a gradient on every rank.
    At this size, sorting tokens by expert would cost more than it saves.

    Attributes:
        sent: (experts,) share of the latest batch's tokens per expert; no gradient.
        probability: (experts,) mean gate probability per expert over the latest batch.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, NUM_EXPERTS, bias=False)
        self.experts = nn.ModuleList(Dense(width) for _ in range(NUM_EXPERTS))
        self.sent = self.probability = torch.full((NUM_EXPERTS,), 1 / NUM_EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        probabilities = self.gate(x).float().softmax(-1)
        top_probabilities, top_experts = probabilities.topk(NUM_CHOSEN, dim=-1)
        weights = torch.zeros_like(probabilities).scatter(
            -1, top_experts, top_probabilities / top_probabilities.sum(-1, keepdim=True)
        )
        expert_mask = functional.one_hot(top_experts, NUM_EXPERTS).sum(-2).float().flatten(0, 1)
        self.sent, self.probability = expert_mask.mean(0) / NUM_CHOSEN, probabilities.flatten(0, 1).mean(0)
        if not self.training:
            return self._mix_chosen_experts(x.flatten(0, 1), weights.flatten(0, 1), expert_mask).view_as(x)
        output = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            output = output + weights[..., index, None].to(x.dtype) * expert(x)
        return output

    def _mix_chosen_experts(self, tokens: Tensor, weights: Tensor, expert_mask: Tensor) -> Tensor:
        """Return the same result, (tokens, width), computing only the chosen tokens of each expert.

        Only for evaluation: in training, each expert needs a gradient in every step, and shapes that depend
        on values force the host to wait for the GPU.
        """
        output = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            token_indices = expert_mask[:, index].nonzero().squeeze(-1)
            weight = weights[token_indices, index, None].to(tokens.dtype)
            output.index_add_(0, token_indices, (weight * expert(tokens[token_indices])).to(output.dtype))
        return output


class GptMoe(nn.Module):
    """A GPT whose dense layers are experts; in training it also returns the decisions of its gates.

    The load-balancing loss needs the shares over the global batch, so the objective computes it.
    """

    def __init__(self, vocabulary_size: int, sequence_length: int, shape: Shape) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary_size, sequence_length, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.num_heads, is_causal=True, dense=Experts(shape.width))
            for _ in range(shape.num_layers)
        )
        self.head = Head(shape.width, vocabulary_size)
        transformer.init_transformer(self)
        nn.init.normal_(self.head.scores.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Map (batch, length) tokens to (batch, length, vocabulary) scores.

        In training returns (scores, sent, probabilities), the last two (layers, experts); see `Experts`.
        """
        x = self.embedding(tokens)
        sent, probabilities = [], []
        for block in self.blocks:
            x = block(x)
            assert isinstance(block, Block) and isinstance(block.dense, Experts)
            sent.append(block.dense.sent)
            probabilities.append(block.dense.probability)
        scores: Tensor = self.head(x)
        return (scores, torch.stack(sent), torch.stack(probabilities)) if self.training else scores


@register_model(
    "gpt_moe",
    label="GPT with experts",
    description=f"A GPT with {NUM_EXPERTS} experts per layer; a gate chooses {NUM_CHOSEN} for each token.",
    tasks=(LANGUAGE_MODELLING,),
    family="transformer",
    sizes={"small": "2 layers, learns on a laptop", "medium": "6 layers, for a GPU"},
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a GPT with experts for the data set's vocabulary and window length."""
    return GptMoe(spec.num_classes, spec.input_shape[0], SHAPES[options.size or "small"])
