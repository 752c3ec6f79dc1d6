"""The transformer block of GPT, ViT and BERT (Vaswani et al. 2017; pre-norm, Xiong et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

MLP_EXPANSION = 4
# Up to this length, plain matrix products are the fastest attention in bf16 on a CPU. Measured with 64 × 4
# heads, for plain products, fp32 kernel and torch's bf16 kernel: 27, 43 and 100 ms at length 128; 103, 173
# and 174 ms at 512; 607, 541 and 479 ms at 1,024. The memory of plain products grows with the square of the
# length.
MAX_PLAIN_LENGTH = 512


class Block(nn.Module):
    """Attention, then a dense layer of four times the width, each with a residual connection.

    Args:
        is_causal: True if each position attends only to itself and earlier positions.
        dense: replaces the dense layer (mixture of experts); keeps the shape (batch, length, width).
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        is_causal: bool,
        dropout: float = 0.0,
        dense: nn.Module | None = None,
    ) -> None:
        super().__init__()
        assert width % num_heads == 0
        self.head_width = width // num_heads
        self.is_causal = is_causal
        self.attention_norm = nn.LayerNorm(width)
        # Output layout (heads, 3, head width): tensor parallelism splits it by columns and keeps heads whole.
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.dense_norm = nn.LayerNorm(width)
        self.dense = Dense(width) if dense is None else dense
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map (batch, length, width) to the same shape; `mask` is a (batch, 1, 1, length) bool mask."""
        x = x + self.dropout(self._attend(self.attention_norm(x), mask))
        output: Tensor = x + self.dropout(self.dense(self.dense_norm(x)))
        return output

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        heads = self.query_key_value(x).view(batch, length, -1, 3, self.head_width)
        query, key, value = heads.permute(3, 0, 2, 1, 4)
        attended = attend(query, key, value, mask, is_causal=self.is_causal)
        output: Tensor = self.attention_out(attended.transpose(1, 2).reshape(batch, length, -1))
        return output


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """Return scaled dot-product attention; query, key and value are (batch, heads, length, head width).

    torch's fused kernel is not used in bf16 on a CPU, where its backward pass takes most of a step.
    """
    if query.device.type != "cpu" or query.dtype != torch.bfloat16:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    length = query.shape[-2]
    if length > MAX_PLAIN_LENGTH:
        with torch.autocast("cpu", enabled=False):
            return functional.scaled_dot_product_attention(
                query.float(), key.float(), value.float(), attn_mask=mask, is_causal=is_causal
            )
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if is_causal:
        scores = scores + scores.new_full((length, length), float("-inf")).triu(1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    output: Tensor = scores.softmax(-1) @ value
    return output


class Dense(nn.Module):
    """Two dense layers with GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense_in = nn.Linear(width, MLP_EXPANSION * width, bias=False)
        self.dense_out = nn.Linear(MLP_EXPANSION * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, width) to the same shape."""
        output: Tensor = self.dense_out(functional.gelu(self.dense_in(x)))
        return output


def tensor_parallel_plan(blocks: nn.ModuleList) -> dict[str, ParallelStyle]:
    """Return how the blocks are split (Shoeybi et al. 2019, "Megatron-LM"): one all-reduce per half block.

    The first matrix of each half is split by columns and the second by rows, so that nothing is sent
    between the two.
    """
    # Imported here because the import takes most of a second, and few runs need it.
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan: dict[str, ParallelStyle] = {}
    for index in range(len(blocks)):
        plan[f"blocks.{index}.query_key_value"] = ColwiseParallel()
        plan[f"blocks.{index}.attention_out"] = RowwiseParallel()
        plan[f"blocks.{index}.dense.dense_in"] = ColwiseParallel()
        plan[f"blocks.{index}.dense.dense_out"] = RowwiseParallel()
    return plan


def init_transformer(network: nn.Module) -> None:
    """Initialise by fan-in, with each block as the identity (Zhang et al. 2019, "Fixup").

    With the usual deviation of 0.02, a network this narrow predicts only letter frequencies for hundreds of
    steps before it learns their order.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
    for module in network.modules():
        if isinstance(module, Block):
            nn.init.zeros_(module.attention_out.weight)
        elif isinstance(module, Dense):
            nn.init.zeros_(module.dense_out.weight)
