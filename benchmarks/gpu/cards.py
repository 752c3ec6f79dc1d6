"""Peak performance of cards, and the share that training reaches: model FLOP utilisation."""

from __future__ import annotations

import re

import torch
from torch.utils.flop_counter import FlopCounterMode

from trainers import registry
from trainers.data.dataset import LANGUAGE_MODELLING, DataSpec
from trainers.optimisation.objective import Objective
from trainers.registry import ModelOptions

# Dense bf16 products with fp32 sums, in TFLOP/s, from NVIDIA's data sheets (where figures are often doubled,
# "with sparsity"). A card is the first entry all of whose words are in its name.
PEAK_TFLOPS = (
    ("B200", 2250.0),
    ("H200 NVL", 835.0),
    ("GH200", 989.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("A10", 125.0),
    ("L4", 121.0),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
)
# These words in a name mean a part of that card, or a slower one with a similar name.
ANOTHER_CARD = frozenset({"mig", "laptop", "d"})
MFU_FORMULA = (
    "samples/s x FLOP of one sample / peak of the card; FLOP of one sample: two for each multiplication with "
    "addition in all matrix products, convolutions and (whole, not halved for causality) attention, forward "
    "and backward, counted by torch's FlopCounterMode"
)


def peak_tflops(card: str) -> float | None:
    """Return the card's dense bf16 peak, or None if it is unknown."""
    words = set(_words(card))
    if words & ANOTHER_CARD:
        return None
    return next((peak for name, peak in PEAK_TFLOPS if words.issuperset(_words(name))), None)


def flop_per_sample(model: str, model_size: str, spec: DataSpec) -> int:
    """Count the FLOP of one sample forward and backward, without computation, on the meta device."""
    with torch.device("meta"):
        network = registry.models()[model].build(spec, ModelOptions(size=model_size))
        if spec.task == LANGUAGE_MODELLING:
            inputs = torch.zeros((1, *spec.input_shape), dtype=torch.long)
            targets = inputs
        else:
            # Two samples, because batch norm cannot compute a variance from one sample of one pixel.
            inputs = torch.zeros((2, *spec.input_shape))
            targets = torch.zeros(2, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            Objective(spec).training_loss(network(inputs), targets).backward()
    return int(counter.get_total_flops()) // len(inputs)


def utilisation(samples_per_s: float, flop: int, card: str) -> float | None:
    """Return the model FLOP utilisation, 0 to 1, or None if the card's peak is unknown."""
    peak = peak_tflops(card)
    return None if peak is None else samples_per_s * flop / (peak * 1e12)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
