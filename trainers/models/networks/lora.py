"""LoRA: frozen pretrained weights, with two small trained matrices next to some of them (by peft).

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

from torch import nn

from trainers.models.networks import pretrained

log = logging.getLogger(__name__)

# The output of the adapters is multiplied by alpha / rank; 2 is the usual factor.
ALPHA_PER_RANK = 2


def add_adapters(network: Any, rank: int, *, offline: bool) -> None:
    """Freeze a model of transformers and add trained adapters to its layers, in place; 0 adds none.

    The layers are those that peft names for the architecture, such as query and value of BERT; for
    unknown architectures, all linear layers except the output layer.

    Raises:
        NotInstalledError: if peft is missing; contains the command that installs it.
        ValueError: if the model has no such layers.
    """
    if rank == 0:
        return
    peft = pretrained.import_peft(offline=offline)
    targets_by_model_type = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    layers = targets_by_model_type.get(network.config.model_type, "all-linear")
    config = peft.LoraConfig(r=rank, lora_alpha=ALPHA_PER_RANK * rank, target_modules=layers)
    with warnings.catch_warnings():
        # Ignore peft's warning that GPT-2 stores its matrices transposed, which peft handles.
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        peft.inject_adapter_in_model(config, network)
    log.info("LoRA of rank %d; adapted layers: %s", rank, layers)


def merge_adapters(network: nn.Module) -> None:
    """Merge the adapters into the weights, in place, so that only the original layers remain."""
    adapted_layer = pretrained.import_peft(offline=True).tuners.tuners_utils.BaseTunerLayer
    for name, layer in list(network.named_modules()):
        if isinstance(layer, adapted_layer):
            layer.merge()
            network.set_submodule(name, layer.get_base_layer())
