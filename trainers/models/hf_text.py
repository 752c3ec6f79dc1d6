"""Fine-tunes a pretrained text model of transformers (BERT, DistilBERT, MiniLM, …) as a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers.data import TEXT_CLASSIFICATION, DataSpec, Tokenizer
from trainers.models.networks import lora, pretrained, pretrained_text
from trainers.registry import ModelOptions, register_model

NAME = "hf_text"
DROPOUT = 0.1


class MeanPoolingClassifier(nn.Module):
    """A pretrained encoder and a new output layer on the mean of its token outputs.

    Sentence models are trained with the mean (Reimers and Gurevych 2019, "Sentence-BERT").
    """

    def __init__(self, reader: nn.Module, width: int, spec: DataSpec) -> None:
        super().__init__()
        self.padding = spec.padding
        self.reader = reader
        self.dropout = nn.Dropout(DROPOUT)
        self.scores = nn.Linear(width, spec.num_classes)
        nn.init.normal_(self.scores.weight, std=0.02)
        nn.init.zeros_(self.scores.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, classes) scores; padding is masked."""
        mask = attention_mask(tokens, self.padding)
        outputs = self.reader(input_ids=tokens, attention_mask=mask).last_hidden_state
        mean = (outputs * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        scores: Tensor = self.scores(self.dropout(mean))
        return scores


class PretrainedClassifier(nn.Module):
    """A pretrained classifier with the same number of classes; keeps its output layer."""

    def __init__(self, classifier: Any, spec: DataSpec) -> None:
        super().__init__()
        self.padding = spec.padding
        self.classifier = classifier
        classifier.config.pad_token_id = spec.padding  # decoders use it to find the end of a text

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) tokens to (batch, classes) scores."""
        mask = attention_mask(tokens, self.padding)
        scores: Tensor = self.classifier(input_ids=tokens, attention_mask=mask).logits
        return scores


def attention_mask(tokens: Tensor, padding: int) -> Tensor:
    """Return a (batch, length) mask, 1 for tokens and 0 for padding; the first position is always 1."""
    mask = (tokens != padding).long()
    mask[:, 0] = 1
    return mask


def tokenizer(options: ModelOptions) -> Tokenizer:
    """Return the tokenizer of the pretrained model."""
    return pretrained_text.load_tokenizer(
        options.pretrained_path, NAME, offline=options.offline, is_padded=True
    )


@register_model(
    NAME,
    label="Fine-tune a text model",
    description="A pretrained Hugging Face model from a folder, which learns to classify your texts.",
    tasks=(TEXT_CLASSIFICATION,),
    family="pretrained",
    needs_path=True,
    requires=(pretrained.TRANSFORMERS,),
    options={"lora_rank": pretrained.PEFT},
    tokenizer=tokenizer,
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Load the folder's model; keep its output layer if the number of classes matches, else create one."""
    folder = pretrained.model_folder(options.pretrained_path, NAME)
    config = pretrained_text.transformers_config(folder, NAME)
    transformers = pretrained.import_transformers(offline=options.offline)
    network: nn.Module
    if num_trained_classes(config) == spec.num_classes:
        pretrained_model = pretrained_text.load(transformers.AutoModelForSequenceClassification, folder, NAME)
        network = PretrainedClassifier(pretrained_model, spec)
    else:
        pretrained_model = pretrained_text.load(transformers.AutoModel, folder, NAME)
        network = MeanPoolingClassifier(
            pretrained_model, pretrained_model.config.get_text_config().hidden_size, spec
        )
    # The output layer, which is not part of `base_model`, is trained in full.
    lora.add_adapters(pretrained_model.base_model, options.lora_rank, offline=options.offline)
    pretrained_text.check_tokens(spec, tokenizer(options).vocabulary_size, pretrained_model, folder)
    # Any token except padding.
    example = torch.full((1, spec.input_shape[0]), 1 if spec.padding == 0 else 0)
    pretrained.freeze_unused(network, example)
    return network


def num_trained_classes(config: Mapping[str, Any]) -> int:
    """Return the number of classes of the model in a config.json, or 0 if it is not a classifier."""
    if not any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return 0
    return len(config.get("id2label") or ()) or 2  # transformers omits the default of two
