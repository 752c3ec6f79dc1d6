"""Fine-tunes a pretrained causal language model of the transformers library (GPT-2, Llama, Qwen, …)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainers.data import LANGUAGE_MODELLING, DataSpec, Tokenizer
from trainers.models.networks import lora, pretrained, pretrained_text
from trainers.registry import ModelOptions, register_model

NAME = "hf_causal"


class PretrainedCausalLM(nn.Module):
    """A pretrained causal language model: scores for the next token at each position."""

    def __init__(self, writer: Any, num_tokens: int) -> None:
        super().__init__()
        self.writer = writer
        self.num_tokens = num_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, length, vocabulary) scores."""
        scores: Tensor = self.writer(input_ids=tokens, use_cache=False).logits
        # Some models have unused rows beyond their tokenizer's vocabulary.
        return scores[..., : self.num_tokens]


def tokenizer(options: ModelOptions) -> Tokenizer:
    """Return the tokenizer of the pretrained model."""
    return pretrained_text.load_tokenizer(
        options.pretrained_path, NAME, offline=options.offline, is_padded=False
    )


@register_model(
    NAME,
    label="Fine-tune a language model",
    description="A pretrained Hugging Face model from a folder, which learns to write like your text.",
    tasks=(LANGUAGE_MODELLING,),
    family="pretrained",
    needs_path=True,
    requires=(pretrained.TRANSFORMERS,),
    options={"lora_rank": pretrained.PEFT},
    tokenizer=tokenizer,
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Load the folder's model with all weights; with LoRA, only the adapters are trained.

    Raises:
        ValueError: if it is not a causal language model, or is incompatible with the data.
    """
    folder = pretrained.model_folder(options.pretrained_path, NAME)
    pretrained_text.transformers_config(folder, NAME)
    transformers = pretrained.import_transformers(offline=options.offline)
    pretrained_model = pretrained_text.load(transformers.AutoModelForCausalLM, folder, NAME)
    lora.add_adapters(pretrained_model, options.lora_rank, offline=options.offline)
    pretrained_text.check_tokens(spec, tokenizer(options).vocabulary_size, pretrained_model, folder)
    network = PretrainedCausalLM(pretrained_model, spec.num_classes)
    example = torch.arange(spec.input_shape[0]).remainder(spec.num_classes).unsqueeze(0)
    pretrained.freeze_unused(network, example)
    if is_not_causal(network, example):
        raise ValueError(
            f"the model in {folder} attends to the words that it must predict (it is not causal), so it "
            "cannot learn to write. Use it with model hf_text"
        )
    return network


@torch.no_grad()
def is_not_causal(network: nn.Module, tokens: Tensor) -> bool:
    """True if the second half of a text affects scores in the first half; `tokens` is (1, length)."""
    network.eval()
    half = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, half:] = tokens[:, :1]
    scores, changed_scores = network(tokens)[:, :half], network(changed)[:, :half]
    network.train()
    # Measured relative change: 0 for GPT-2 and Llama, 0.003 for a BERT with random weights.
    return bool((scores - changed_scores).abs().max() > 1e-5 * scores.abs().max())
