"""Tests of the predicted memory of a rank, by optimizer, strategy and batch."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.memory import predict
from ddp_gui.plan.plan import make, parse
from ddp_gui.train import choices
from tests.unit.ddp_gui.train.test_form_help import real  # noqa: F401 - a fixture
from trainers.contract import config

NEEDS = {"activation_bytes_per_sample": 1000, "largest_layer_bytes": 10}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"optimizer": "adamw"}, (400, 400, 800, 64_000)),
        ({"optimizer": "sgd"}, (400, 400, 400, 64_000)),
        ({"optimizer": "sgd", "momentum": 0}, (400, 400, 0, 64_000)),
        ({"gradient_as_bucket_view": False}, (400, 800, 800, 64_000)),
        ({"batch_size": 8}, (400, 400, 800, 8_000)),
        ({"strategy": "zero1", "nproc_per_node": 4}, (400, 400, 200, 64_000)),
        ({"strategy": "zero2", "nproc_per_node": 4}, (400, 100, 200, 64_000)),
        ({"strategy": "zero3", "nproc_per_node": 4}, (100, 100, 200, 64_000)),
    ],
)
def test_each_strategy_divides_what_it_divides(
    real: Catalogue,  # noqa: F811
    values: dict[str, Any],
    expected: tuple[int, ...],
) -> None:
    asked = config.parse(values)
    found = predict(asked, real.strategies[asked.strategy], 100, NEEDS)
    assert found is not None
    assert (
        found.parameters_bytes,
        found.gradients_bytes,
        found.optimizer_bytes,
        found.activations_bytes,
    ) == expected


def test_what_is_not_known_is_not_made_up(real: Catalogue) -> None:  # noqa: F811
    ddp = real.strategies["ddp"]
    assert predict(config.parse({}), ddp, None, NEEDS) is None
    unknown = predict(config.parse({}), ddp, 100, None)
    assert unknown is not None
    assert (unknown.activations_bytes, unknown.total_bytes) == (None, 1600)


def test_the_bar_says_when_it_will_not_fit(real: Catalogue) -> None:  # noqa: F811
    small = Machine(num_gpus=0, num_cores=2, memory_bytes=3000)
    planned = make(parse({"dataset": "digits", "model": "mlp"}, small), real, small)
    predicted = predict(planned.config, planned.strategy, 100, None)
    said = choices.memory(planned, small, predicted)
    assert "1.6 kB" in said and "it will not fit" in said and "activations</button> unknown" in said
    large = Machine(num_gpus=0, num_cores=2, memory_bytes=3_000_000)
    assert "it will not fit" not in choices.memory(planned, large, predicted)
    assert choices.memory(planned, large, None) == ""


def test_on_a_gpu_the_process_counts_and_so_does_what_others_use(real: Catalogue) -> None:  # noqa: F811
    """CUDA's context and workspaces are on the GPU, and possibly a desktop or another process."""
    gpus = Machine(
        num_gpus=3,
        num_cores=8,
        gpu_memory_bytes=8_000_000_000,
        gpu_free_bytes=(600_000_000, 7_000_000_000, 3_000_000_000),
    )

    def said(num_ranks: int, num_parameters: int) -> str:
        values = {"dataset": "digits", "model": "mlp", "nproc_per_node": num_ranks}
        planned = make(parse(values, gpus), real, gpus)
        predicted = predict(planned.config, planned.strategy, num_parameters, None, is_on_gpu=True)
        return choices.memory(planned, gpus, predicted)

    alone, two, three = said(1, 100), said(2, 100), said(3, 100)
    assert "at least <b>534 MB</b> of the 8.0 GB of its GPU, 7.0 GB of them free at the moment" in alone
    assert "CUDA and its libraries, about 534 MB" in alone and "besides the process" not in alone
    assert "<b>734 MB</b>" in two and "3.0 GB of them free at the moment" in two and "not fit" not in two
    assert "it will not fit next to the programs that currently use the GPU" in three
    # 16 bytes per weight: 6.4 GB would fit in 8 GB, but together with the process they exceed the free
    # memory.
    assert "it will not fit next to the programs that currently use the GPU" in said(1, 420_000_000)
    assert "GB of them free at the moment: it will not fit<" in said(1, 500_000_000)
