"""The examples of docs/adding.md: in the catalogue, in the plan, and in a run that uses all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_gui.background import trainer_process
from ddp_gui.devices.capacity import Machine
from ddp_gui.plan import memory, plan
from ddp_gui.plan.catalogue import Catalogue, CatalogueSource
from tests import adding
from tests.harness import Launcher
from trainers.contract.config import ConfigError

LAPTOP = Machine(num_gpus=0, num_cores=8)
ADDED = {
    "model": "two_layers",
    "dataset": "outliers",
    "strategy": "by_hand",
    "by_hand.piece_mb": 1,
    "nproc_per_node": 2,
    "batch_size": 50,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adding.copy_with_examples(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def catalogue(root: Path) -> Catalogue:
    """Return the catalogue of the copy's page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_process, "REPOSITORY", root)
        return CatalogueSource(None).get()


@pytest.fixture
def launcher(root: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher of the copy's runs."""
    made = Launcher(tmp_path / "runs", repository=root)
    yield made
    made.close()


def test_every_row_of_the_table_with_an_example_has_one() -> None:
    assert sorted(Path(path).parent.name for path in adding.examples()) == [
        "analysis", "contract", "datasets", "events", "models", "strategies", "tasks", "trainers",
    ]  # fmt: skip


def test_the_catalogue_has_what_was_added_with_its_words(catalogue: Catalogue) -> None:
    assert catalogue.errors == ()
    assert catalogue.models["two_layers"].sizes[1].num_parameters["outliers"] == 3 * 512 + 1
    assert catalogue.datasets["outliers"].task == "robust_regression"
    assert catalogue.tasks["robust_regression"].loss_words == "Huber loss"
    assert catalogue.strategies["by_hand"].sharing.startswith("After backward, ")
    assert catalogue.only_with("by_hand.piece_mb") == ("strategy", ("by_hand",))
    assert {"by_hand", "ddp"} <= set(catalogue.models["cnn"].strategies)


def test_the_plan_checks_what_the_strategy_says(catalogue: Catalogue) -> None:
    planned = plan.make(plan.parse(ADDED, LAPTOP), catalogue, LAPTOP)
    assert (planned.global_batch, planned.steps_per_epoch) == (100, 20)
    predicted = memory.predict(planned.config, planned.strategy, 100, None)
    assert predicted is not None and predicted.gradients_bytes == 800
    left_out = plan.make(plan.parse({**ADDED, "by_hand.piece_mb": "2"}, LAPTOP), catalogue, LAPTOP)
    assert left_out.config.plugin_options == {"by_hand.piece_mb": 2}
    for change, words in (
        ({"nproc_per_node": 1}, "nproc_per_node is 1; allowed: at least 2"),
        ({"by_hand.piece_mb": 0}, "by_hand.piece_mb is 0; allowed: a whole number from 1 to 4,096"),
        ({"by_hand.pieces": 1}, "by_hand.pieces is 1; allowed: no option of this name"),
        ({"strategy": "ddp"}, "by_hand.piece_mb is 1; allowed: no option of this name"),
    ):
        with pytest.raises(ConfigError) as refused:
            plan.make(plan.parse(ADDED | change, LAPTOP), catalogue, LAPTOP)
        assert words in str(refused.value)


def test_a_run_trains_with_model_data_strategy_and_task_that_were_added(launcher: Launcher) -> None:
    live = launcher.start(**{**ADDED, "num_epochs": 2}).finish()
    (said,) = [event["message"] for event in live.events("warning")] or ("",)
    assert said == ""
    losses = live.losses()
    assert len(losses) == 40 and losses[40] < losses[1] / 2
    # Without the averaging in the strategy, the weights of the ranks would diverge.
    by_ddp = {name: value for name, value in ADDED.items() if name != "by_hand.piece_mb"}
    ddp = launcher.start(**{**by_ddp, "strategy": "ddp", "num_epochs": 2}).finish()
    assert losses == pytest.approx(ddp.losses(), rel=1e-4)
    newest = live.events("eval")[-1]
    assert set(newest["metrics"]) == {"rmse", "mae", "r2"}
    assert live.events("sample")[-1]["type"] == "curve"
    assert live.events("checkpoint")
    assert live.run.read_config().plugin_options == {"by_hand.piece_mb": 1}


def test_a_run_obeys_a_command_that_was_added(launcher: Launcher) -> None:
    live = launcher.start(**{**ADDED, "num_epochs": 10_000})
    live.wait_for_step(2)
    answer = live.ask("evaluate")
    assert answer["accepted"] and answer["message"] == f"Evaluated after step {answer['step']}."
    assert answer["step"] in [event["step"] for event in live.events("eval")]
    live.ask("stop", save=False)
    assert live.wait_for_end().state == "stopped", live.story()
