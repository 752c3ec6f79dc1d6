"""The first fields of the form: what trains on what, on how many ranks, how fast and how long."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Basics:
    """The first fields of the form: what trains on what, on how many ranks, how fast and how long."""

    model: str = setting("cnn", label="Model", help="The network that learns.", catalog="models")
    dataset: str = setting("fashion_mnist", label="Data set", help="What it learns from.", catalog="datasets")
    nproc_per_node: int = setting(
        2,
        label="Ranks",
        term="rank",
        help="Ranks on each machine: one per GPU, or processes on the CPU if there is no GPU.",
        minimum=1,
        maximum=1024,
    )
    num_nodes: int = setting(
        1,
        label="Machines",
        help="How many machines train together, each with as many ranks. This machine alone is 1.",
        topic="where",  # the form asks only where there are several
        minimum=1,
        maximum=1024,
    )
    batch_size: int = setting(
        64,
        label="Batch per rank",
        term="batch per rank",
        help="Samples that each rank processes in one step.",
        minimum=1,
        maximum=65536,
    )
    learning_rate: float = setting(
        0.002,
        label="Learning rate",
        term="learning rate",
        help="How far each step moves the weights.",
        above=0,
        maximum=100,
    )
    num_epochs: int = setting(
        20,
        label="Epochs",
        term="epoch",
        help="Number of passes over the training data.",
        minimum=1,
        maximum=100_000,
    )
    seed: int = setting(
        0,
        label="Seed",
        term="seed",
        help="The same seed gives the same weights, data order and result.",
        topic="reproduce",
        minimum=0,
        maximum=2**31 - 1,
    )
