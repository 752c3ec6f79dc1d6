"""Arithmetic of the GPU speed check: peaks, FLOP and parameters."""

from __future__ import annotations

import pytest

from benchmarks.gpu import cards
from trainers import registry
from trainers.data.dataset import LANGUAGE_MODELLING, DataSpec
from trainers.models.gpt import SHAPES


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H20", None),
        ("CPU", None),
    ],
)
def test_a_card_is_known_by_all_the_words_of_its_name(card: str, peak: float | None) -> None:
    assert cards.peak_tflops(card) == peak


def test_flop_of_a_gpt_are_those_of_the_well_known_formula() -> None:
    """6 per matrix weight and token, plus 12 x layers x length x width for attention (PaLM, appendix B)."""
    registry.discover_all()
    length, vocabulary, shape = 32, 50, SHAPES["small"]
    spec = text_spec(vocabulary, length)
    weights = shape.num_layers * 12 * shape.width**2 + shape.width * vocabulary
    expected = length * (6 * weights + 12 * shape.num_layers * length * shape.width)
    assert cards.flop_per_sample("gpt", "small", spec) == expected


def text_spec(vocabulary_size: int, length: int) -> DataSpec:
    return DataSpec(
        task=LANGUAGE_MODELLING,
        input_shape=(length,),
        num_classes=vocabulary_size,
        class_names=(),
        num_train=1,
        num_validation=1,
        sample_unit="passages",
        description="",
        source="",
        vocabulary_size=vocabulary_size,
    )


def test_utilisation_is_a_share_of_the_peak() -> None:
    assert cards.utilisation(100.0, int(4.945e12), "NVIDIA H200") == pytest.approx(0.5)
    assert cards.utilisation(100.0, 10**12, "a card nobody knows") is None
