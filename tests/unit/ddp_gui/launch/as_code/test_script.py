"""The script of a configuration is well-formed, short, safe to run, and has no unused parts."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.launch.as_code import script
from ddp_gui.launch.as_code.script import EXACT_RANKS
from ddp_gui.launch.as_code.templates import NotAsCodeError
from tests.hostile_words import ACTING
from tests.script_text import config_of, script_of, strategy_of
from trainers.contract.catalogue import CatalogueDataset
from trainers.contract.config import Config
from trainers.files.plain_files import ASSETS

FASHION = CatalogueDataset(
    name="fashion_mnist", label="Fashion-MNIST", description="", source="", task="image_classification",
    num_train=8_000, num_validation=2_000, num_classes=10, sample_unit="images",
)  # fmt: skip
DIGITS = replace(FASHION, name="digits", label="Digits", num_train=1_437, num_validation=360)
NOVELS = replace(FASHION, name="austen_novels", task="text_classification", num_train=9_000, num_classes=6)
AUSTEN = replace(
    FASHION, name="austen", task="language_modelling", num_train=60_000, num_classes=90, num_places=3_900_000
)
DIABETES = replace(FASHION, name="diabetes", task="tabular_regression", num_train=354, num_classes=1)
DATASETS = {each.name: each for each in (FASHION, DIGITS, NOVELS, AUSTEN, DIABETES)}
# Covers the options that the form offers.
SETTINGS: dict[str, dict[str, Any]] = {
    "the usual": {"dataset": "fashion_mnist", "model": "cnn"},
    "one rank, accumulated": {
        "dataset": "digits", "model": "mlp", "nproc_per_node": 1, "gradient_accumulation_steps": 3,
    },
    "any device": {"dataset": "fashion_mnist", "model": "vit", "device": "auto", "num_workers": 2},
    "GPUs, bf16": {"dataset": "austen", "model": "gpt", "device": "cuda", "precision": "bf16"},
    "any device, fp16, clipped": {
        "dataset": "diabetes", "model": "tabular_mlp", "device": "auto", "precision": "fp16",
        "max_grad_norm": 1, "gradient_accumulation_steps": 2, "scale_lr": True, "lr_schedule": "linear",
    },
    "TF32, compressed, small buckets": {
        "dataset": "fashion_mnist", "model": "resnet", "model_size": "50", "device": "auto",
        "precision": "tf32", "gradient_compression": "fp16", "bucket_cap_mb": 1, "static_graph": True,
    },
    "augmented": {"dataset": "fashion_mnist", "model": "cnn", "random_flip": True, "random_crop": 2},
    "one cycle, stopped early": {
        "dataset": "austen_novels", "model": "bert", "lr_schedule": "one_cycle", "warmup_steps": 5,
        "max_steps": 50, "eval_every_steps": 10, "early_stopping_patience": 3,
    },
    "steps, uneven, accumulated": {
        "dataset": "digits", "model": "mlp", "lr_schedule": "step", "gradient_accumulation_steps": 3,
        "warmup_ratio": 0.1, "deterministic": True, "optimizer": "sgd", "nesterov": True,
    },
    "ZeRO-2": {"dataset": "austen_novels", "model": "gru", "strategy": "zero2", "optimizer": "sgd"},
    "ZeRO-3": {"dataset": "fashion_mnist", "model": "resnet", "strategy": "zero3", "weight_decay": 0},
    "tensor": {"dataset": "austen", "model": "gpt", "strategy": "tensor", "label_smoothing": 0.1},
    "a mistake": {"dataset": "digits", "model": "linear", "mistake": "no_sampler", "compile": True},
}  # fmt: skip


def text_of(**settings: Any) -> str:
    config = config_of(**settings)
    return script_of(config, DATASETS[config.dataset]).text


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number, settings in enumerate(SETTINGS.values()):
        text = text_of(**settings).replace(str(ASSETS), "/project/assets")  # independent of this checkout
        (folder / f"case_{number}.py").write_text(text, encoding="utf-8")
    return folder


def test_scripts_are_formatted_and_linted_and_need_torch_and_numpy_alone(texts: Path) -> None:
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    width = ["--isolated", "--line-length", "110"]
    rules = ["--select", "E,F,I,W,B", "--ignore", "E402,B905"]
    for command in (
        [*ruff, "check", *width, *rules, str(texts)],
        [*ruff, "format", "--diff", *width, str(texts)],
    ):
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    for path in texts.iterdir():
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        imported = set[str]()
        for node in tree:
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
        assert imported - set(sys.stdlib_module_names) <= {"torch", "numpy"}, path.name


def test_the_lines_that_ranks_need_are_marked() -> None:
    config = config_of(dataset="fashion_mnist", model="cnn")
    found = script.describe(config, FASHION, strategy_of("ddp"))
    assert found["reason"] is None and (found["num_ranks"], found["command"]) == (
        2,
        "torchrun --nproc_per_node 2 train.py",
    )
    lines: list[tuple[str, str]] = found["lines"]
    assert "\n".join(line for sign, line in lines if sign != "-") + "\n" == found["train_py"]
    alone = script_of(script.for_one_rank(config), FASHION).body.splitlines()
    head = script_of(config, FASHION).head.count("\n")
    assert [line for sign, line in lines if sign != "+"][head:] == alone
    added, removed = ("\n".join(line for sign, line in lines if sign == mark) for mark in "+-")
    for words in ("init_process_group", "DistributedSampler", "set_epoch", "DistributedDataParallel"):
        assert words in added
    assert "RandomSampler" in removed and "nn.Conv2d" not in added + removed


def test_the_notebook_has_the_same_code_in_cells() -> None:
    config = config_of(dataset="digits", model="mlp")
    written = script_of(config, DIGITS)
    found = json.loads(json.dumps(script.notebook(written, config)))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    code = ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]
    titles = ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "markdown"]
    assert titles[2:] == ["## Ranks", "## Data", "## Model", "## Optimizer", "## Evaluation", "## Training"]
    assert '"WORLD_SIZE": "1"' in code[0]
    without_comments = [line for line in written.body.splitlines() if line and not line.startswith("# ")]
    in_cells = [line for cell in code[1:] for line in cell.splitlines() if line and not line.startswith("# ")]
    assert in_cells == without_comments
    alone = script.for_one_rank(config)
    assert "WORLD_SIZE" not in json.dumps(script.notebook(script_of(alone, DIGITS), alone))


def test_the_header_says_how_close_it_is_and_what_is_left_out() -> None:
    assert "the same bits" in text_of(dataset="digits", model="mlp", nproc_per_node=EXACT_RANKS)
    for settings in ({"nproc_per_node": 3}, {"strategy": "zero3"}):
        assert "by about 1e-6" in text_of(dataset="digits", model="mlp", **settings)
    text = text_of(dataset="digits", model="mlp", compile=True, mistake="no_sampler")
    header = " ".join(text.split('"""')[1].split())
    for words in ("telemetry", "shared memory", "torch.compile", "mistake on purpose (no_sampler) is not in"):
        assert words in header


HOSTILE = '"""\nimport os; os.system("touch /tmp/was-here")\n"""'


def test_no_text_of_a_copied_run_becomes_code() -> None:
    """A copied run may have any text as its name and as that of its data set."""
    config = config_of(dataset="digits", model="mlp", name=HOSTILE[:50], data_path=HOSTILE)
    dataset = replace(DIGITS, label=HOSTILE, source=HOSTILE, description=ACTING, sample_unit=HOSTILE)
    plain = script.write(config, DIGITS, strategy_of("ddp"))
    text = script.write(config, dataset, strategy_of("ddp"), run_id=HOSTILE).text
    assert ast.dump(ast.parse(text).body[1]) == ast.dump(ast.parse(plain.text).body[1])
    assert text.split('"""')[2] == plain.text.split('"""')[2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "pipeline"}, "Strategy pipeline cannot be exported"),
        (
            {"strategy": "tensor", "model": "vit", "max_grad_norm": 1},
            "Gradient clipping with strategy tensor",
        ),
        ({"gradient_compression": "bf16"}, "compression to bf16"),
        ({"model": "timm_image"}, "Model timm_image cannot be exported"),
        ({"model": "mine"}, "Model mine cannot be exported"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_reason(settings: dict[str, Any], words: str) -> None:
    config: Config = config_of(**{"dataset": "digits", "model": "mlp"} | settings)
    with pytest.raises(NotAsCodeError, match=words):
        script.write(config, DIGITS, strategy_of(config.strategy))
    found = script.describe(config, DIGITS, strategy_of(config.strategy))
    assert words in found["reason"] and found["train_py"] == "" and found["lines"] == []


def test_a_plug_in_that_was_removed_is_a_reason() -> None:
    for dataset, strategy in ((None, strategy_of("ddp")), (DIGITS, None)):
        found = script.describe(config_of(dataset="digits"), dataset, strategy)
        assert "no longer exists" in found["reason"]
    with pytest.raises(NotAsCodeError, match="Data set mine cannot be exported"):
        script.write(config_of(dataset="mine"), replace(DIGITS, name="mine"), strategy_of("ddp"))
