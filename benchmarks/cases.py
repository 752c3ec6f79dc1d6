"""Training configurations for comparisons with other frameworks: each model of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its data, and the number of steps."""

    model: str
    dataset: str
    batch_size: int
    num_steps: int
    size: str = ""


# Each takes some ten seconds on two cores.
CASES = {
    "mlp": Case(model="mlp", dataset="fashion_mnist", batch_size=64, num_steps=1500),
    "cnn": Case(model="cnn", dataset="fashion_mnist", batch_size=64, num_steps=600),
    "linear": Case(model="linear", dataset="fashion_mnist", batch_size=64, num_steps=3000),
    "resnet": Case(model="resnet", dataset="fashion_mnist", batch_size=64, num_steps=160),
    "vit": Case(model="vit", dataset="fashion_mnist", batch_size=64, num_steps=160),
    "bag_of_words": Case(model="bag_of_words", dataset="austen_novels", batch_size=64, num_steps=800),
    "gru": Case(model="gru", dataset="austen_novels", batch_size=64, num_steps=160),
    "bert": Case(model="bert", dataset="austen_novels", batch_size=64, num_steps=120),
    "gpt": Case(model="gpt", dataset="austen", batch_size=64, num_steps=120),
    "gpt_moe": Case(model="gpt_moe", dataset="austen", batch_size=64, num_steps=120),
    "tabular_mlp": Case(model="tabular_mlp", dataset="spirals", batch_size=64, num_steps=3000),
}
# The other models are compared only with the bare script.
COMPARED_WITH_ALL = ("mlp", "cnn")
