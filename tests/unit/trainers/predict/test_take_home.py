"""An exported model gives the same predictions without our code, both with torch and with onnxruntime."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.unit.trained_runs import leave_trained_run
from trainers import registry
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataSpec
from trainers.files.plain_files import REPOSITORY
from trainers.predict import take_home
from trainers.predict.trained_model import find_checkpoint, load

DIFFERENCE = 1e-4
TIMEOUT_S = 300.0
# Every model of the catalogue that needs no folder, and linear on data of each of its tasks; hf_text and
# hf_causal are in tests/integration/test_take_home.py.
CASES = [
    ("digits", "linear"), ("iris", "linear"), ("diabetes", "linear"),
    ("digits", "mlp"), ("digits", "cnn"), ("digits", "resnet"), ("digits", "vit"),
    ("wine", "tabular_mlp"),
    ("austen_novels", "bag_of_words"), ("austen_novels", "gru"), ("austen_novels", "bert"),
    ("austen", "gpt"), ("austen", "gpt_moe"), ("digits", "timm_image"),
]  # fmt: skip
# One case for each kind of program.
KINDS = [
    ("digits", "linear"), ("diabetes", "linear"), ("austen_novels", "bag_of_words"), ("austen", "gpt"),
]  # fmt: skip
HIDES = (
    "import sys; sys.modules.update(dict.fromkeys({hidden!r})); sys.argv = ['predict.py', *sys.argv[1:]]; "
)
RUNS = "import runpy; runpy.run_path('predict.py', run_name='__main__')"


def test_every_model_of_the_catalogue_that_needs_no_folder_is_exported() -> None:
    registry.discover_all()
    needs_a_folder = {"hf_text", "hf_causal"}
    assert {model for _, model in CASES} | needs_a_folder == set(registry.models())


def needs_onnx() -> None:
    absent = [name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)]
    if absent:
        pytest.skip(f"{', '.join(absent)} not installed: pip install -r requirements-export.txt onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A trained model and the folder with its export."""

    run: RunDirectory
    network: nn.Module
    spec: DataSpec
    home: Path
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Exported]:
    """Return a function that exports a model of a data set, once for all tests."""

    @functools.cache
    def export(dataset: str, model: str) -> Exported:
        folder = tmp_path_factory.mktemp(model)
        run, network, spec = leave_trained_run(folder, dataset, model)
        (home := folder / "home").mkdir()
        parts: list[str] = []
        facts = take_home.fill(run, None, home, parts.append)
        assert len(parts) == take_home.NUM_PARTS
        return Exported(run, network, spec, home, facts)

    return export


def printed(folder: Path, hidden: list[str], *arguments: str) -> str:
    """Return the output of predict.py in the exported folder, with some packages hidden."""
    command = [sys.executable, "-c", HIDES.format(hidden=hidden) + RUNS, *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env={}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "model"), CASES)
def test_onnx_and_the_program_agree_with_torch_for_any_batch_size(
    dataset: str, model: str, exported: Callable[[str, str], Exported]
) -> None:
    needs_onnx()
    if model == "timm_image" and not importlib.util.find_spec("timm"):
        pytest.skip("timm is not installed: pip install -r requirements-finetune.txt")
    made = exported(dataset, model)
    assert set(made.facts["differences"]) == {"model.pt2", "model.onnx"}
    assert max(made.facts["differences"].values()) < DIFFERENCE
    inputs = take_home.example_input(load(made.run, find_checkpoint(made.run, None)), num=5)
    program = torch.export.load(made.home / "model.pt2").module()
    onnx = take_home.onnx_module(made.home / "model.onnx")
    with torch.no_grad():
        expected = made.network(inputs)
        assert torch.allclose(program(inputs), expected, atol=DIFFERENCE)
        assert torch.allclose(onnx(inputs), expected, atol=DIFFERENCE)


@pytest.mark.slow
def test_a_language_model_takes_texts_of_any_length_up_to_that_of_training(
    exported: Callable[[str, str], Exported],
) -> None:
    needs_onnx()
    made = exported("austen", "gpt")
    program = torch.export.load(made.home / "model.pt2").module()
    onnx = take_home.onnx_module(made.home / "model.onnx")
    for length in (2, 7, made.spec.input_shape[0]):
        tokens = torch.arange(length).unsqueeze(0)
        with torch.no_grad():
            expected = made.network(tokens)
            assert torch.allclose(program(tokens), expected, atol=DIFFERENCE)
            assert torch.allclose(onnx(tokens), expected, atol=DIFFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "model"), KINDS)
def test_the_script_answers_as_the_page_does_with_torch_alone_and_with_onnxruntime_alone(
    dataset: str, model: str, exported: Callable[[str, str], Exported]
) -> None:
    made = exported(dataset, model)
    run, spec, home, facts = made.run, made.spec, made.home, made.facts
    assert len((home / "predict.py").read_text().splitlines()) <= 60
    with_torch = printed(home, ["numpy", "onnxruntime", "PIL", "trainers"])
    trained = load(run, find_checkpoint(run, None))
    if dataset == "austen":
        assert with_torch.startswith("It is") and len(with_torch) == len("It is") + 200 + 1
    elif spec.num_classes == 1:
        expected = trained.answer(trained.network(trained.validation().batch(torch.tensor([0]))[0])[0])
        assert float(with_torch) == pytest.approx(expected["value"], rel=1e-4)
    else:
        inputs = trained.validation().prepare(trained.validation().batch(torch.tensor([0]))[0])
        expected = trained.answer(trained.network(inputs)[0])
        shown = {name: float(share) for share, name in re.findall(r"([\d.]+)%  (.+)", with_torch)}
        wanted = {each["class_name"]: 100 * each["probability"] for each in expected["probabilities"]}
        assert shown == pytest.approx(wanted, abs=0.02)
    if facts["onnx_problem"] is None:
        needs_onnx()
        with_onnx = printed(home, ["torch", "PIL", "trainers"])
        assert with_onnx == with_torch or dataset != "austen"
        assert [line.split()[-1] for line in with_onnx.splitlines()[:3]] == [
            line.split()[-1] for line in with_torch.splitlines()[:3]
        ] or dataset == "diabetes"
    with pytest.raises(AssertionError, match=r"^There is no file no-such-file"):
        printed(home, [], "no-such-file")


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "model"), [("digits", "linear"), ("austen", "gpt")])
def test_ten_lines_of_torch_load_the_model_and_run_it(
    dataset: str, model: str, exported: Callable[[str, str], Exported]
) -> None:
    made = exported(dataset, model)
    network, home, facts = made.network, made.home, made.facts
    code = facts["snippet"]
    assert len(code.splitlines()) <= 10
    hidden = "import sys; sys.modules.update(dict.fromkeys(['trainers', 'ddp_gui']))\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + code], cwd=home, capture_output=True, text=True, check=False, env={}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    weights = load_file(home / "weights.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
    about = json.loads((home / "model.json").read_text())
    assert about["model"]["name"] == model
    assert set(facts["files"]) == {path.name for path in home.iterdir()}


def test_a_network_that_cannot_be_exported_is_a_message() -> None:
    class Odd(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if inputs.sum() > 0 else -inputs

    with pytest.raises(ValueError, match="the model cannot be exported"):
        take_home.export_program(Odd(), torch.ones(2, 3), is_text=False)


def test_the_packages_that_are_tested_are_those_that_users_install() -> None:
    export, tested = (
        (REPOSITORY / name).read_text().splitlines()
        for name in ("requirements-export.txt", "requirements-dev.txt")
    )
    pinned = [line for line in export if not line.startswith("#")]
    assert pinned and set(pinned) <= set(tested)
    assert {line.partition("==")[0] for line in pinned} >= set(take_home.ONNX_PACKAGES)
