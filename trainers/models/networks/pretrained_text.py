"""Pretrained text models of transformers: loading models and tokenizers, and checking compatibility."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainers.data.dataset import DataSpec
from trainers.models.networks.pretrained import import_transformers, model_folder, read_config, shorten_error

log = logging.getLogger(__name__)

# Files that contain a tokenizer's vocabulary; one is enough.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)


class HubTokenizer:
    """The tokenizer of a pretrained model.

    Args:
        tokenizer: a tokenizer of transformers.
        adds_marks: True to add the model's special tokens to each text ([CLS] and [SEP] of BERT).
    """

    def __init__(self, tokenizer: Any, *, padding: int, adds_marks: bool) -> None:
        self._tokenizer = tokenizer
        self._adds_marks = adds_marks
        self.padding = padding
        self.vocabulary_size = 1 + max(tokenizer.get_vocab().values(), default=-1)

    def encode(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return each text's tokens, truncated to `max_length` including special tokens."""
        rows: list[list[int]] = self._tokenizer(
            list(texts),
            add_special_tokens=self._adds_marks,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return rows

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder."""
        self._tokenizer.save_pretrained(folder)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens, without special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def load_tokenizer(path: str, model: str, *, offline: bool, is_padded: bool) -> HubTokenizer:
    """Return the tokenizer in a pretrained model's folder.

    Args:
        path: the configuration's `pretrained_path`.
        model: name of the chosen model, for messages.
        is_padded: True for texts with special tokens and padding, as for classification; False for running
            text.

    Raises:
        ValueError: if the folder has no tokenizer, or the tokenizer has no padding token.
    """
    folder = model_folder(path, model)
    transformers_config(folder, model)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"{folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): copy it from the model"
        )
    transformers = import_transformers(offline=offline)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(  # nosec B615
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ValueError(f"the tokenizer in {folder} cannot be read: {shorten_error(error)}") from error
    padding_tokens = [
        token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None
    ]
    if is_padded and not padding_tokens:
        raise ValueError(f"the tokenizer in {folder} has no padding token (pad_token)")
    return HubTokenizer(tokenizer, padding=(padding_tokens or [0])[0], adds_marks=is_padded)


def transformers_config(folder: Path, model: str) -> dict[str, Any]:
    """Return the config.json of a transformers model that reads a single text.

    Raises:
        ValueError: if it is a different kind of model.
    """
    config = read_config(folder)
    if "model_type" not in config:
        hint = ": choose model timm_image" if "architecture" in config else ""
        raise ValueError(f"{folder} is not a model of transformers (config.json has no model_type){hint}")
    if "auto_map" in config:
        log.warning("%s contains code, which is not executed", folder)
    if config.get("is_encoder_decoder"):
        kind = config["model_type"]
        raise ValueError(f"{model} cannot use a model of type {kind}, which converts one text into another")
    return config


def load(loader: Any, folder: Path, model: str) -> Any:
    """Return the model in a folder, in fp32, with all weights from the folder.

    Args:
        loader: one of transformers' AutoModel classes.

    Raises:
        ValueError: if it cannot be loaded, or weights are missing in the folder.
    """
    try:
        network, report = loader.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ValueError(f"{model} cannot use the model in {folder}: {shorten_error(error)}") from error
    if network.main_input_name != "input_ids":
        raise ValueError(f"{model} reads text, but the model in {folder} takes {network.main_input_name}")
    if getattr(network, "pooler", None) is not None:
        network.pooler = None  # the pooler's output is unused, and many pretrained models lack its weights
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ValueError(
            f"the weights in {folder} do not belong to its config.json: {len(missing)} weights are missing, "
            f"such as {missing[0]}. Copy both from the same model"
        )
    return network


def check_tokens(spec: DataSpec, vocabulary_size: int, network: Any, folder: Path) -> None:
    """Check that data, tokenizer and model use the same tokens, and that texts are not too long.

    Raises:
        ValueError: if two of these are incompatible; the message names them.
    """
    num_embeddings = network.get_input_embeddings().num_embeddings
    if vocabulary_size > num_embeddings:
        raise ValueError(
            f"the tokenizer in {folder} has {vocabulary_size} tokens, but the model has only "
            f"{num_embeddings}. Copy both from the same model"
        )
    if spec.vocabulary_size != vocabulary_size:
        raise ValueError(
            f"the data set has {spec.vocabulary_size} tokens, but the model in {folder} has "
            f"{vocabulary_size}. This data set does not use the model's tokenizer: choose another data set"
        )
    max_length = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    if max_length is not None and spec.input_shape[0] > max_length:
        raise ValueError(
            f"sequence_length is {spec.input_shape[0]}, but the model in {folder} reads at most "
            f"{max_length} tokens"
        )
