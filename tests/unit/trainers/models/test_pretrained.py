"""Tests of fine-tuning without optional packages: validation of folders, and errors for missing packages.

Tests that need transformers or timm are in tests/integration/test_finetune.py.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.harness import REPOSITORY
from trainers import registry
from trainers.data.dataset import DataSpec, NotInstalledError
from trainers.models import gpt, hf_causal, hf_text, timm_image
from trainers.models.networks import pretrained, pretrained_text
from trainers.registry import ModelOptions

INSTALL = "pip install -r requirements-finetune.txt"
MODELS = ("hf_text", "hf_causal", "timm_image")


def spec(**changes: Any) -> DataSpec:
    values: dict[str, Any] = {
        "task": "text_classification",
        "input_shape": (8,),
        "num_classes": 2,
        "class_names": ("no", "yes"),
        "num_train": 1,
        "num_validation": 1,
        "sample_unit": "texts",
        "description": "",
        "source": "",
        "vocabulary_size": 30,
    }
    return DataSpec(**(values | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with all files of a transformers model; its weights fit no network."""
    return write_folder(tmp_path / "model")


def write_folder(path: Path, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    (path / "vocab.txt").write_text("[PAD]\n")
    save_file({"weight": torch.ones(2, 3)}, path / "model.safetensors")
    return path


def _header(table: dict[str, object]) -> bytes:
    raw = json.dumps(table).encode()
    return len(raw).to_bytes(8, "little") + raw


def refusal(path: Path | str) -> str:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - each test looks at the words
        pretrained.model_folder(str(path), "hf_text")
    return str(raised.value)


def test_empty_path_asks_for_a_folder() -> None:
    assert refusal("") == ("pretrained_path is empty, but hf_text needs a pretrained model: set its folder")


def test_name_on_a_hub_is_told_apart_and_nothing_is_fetched() -> None:
    assert "hf download google-bert/bert-base-uncased --local-dir FOLDER" in refusal(
        "google-bert/bert-base-uncased"
    )


def test_file_in_place_of_its_folder(folder: Path) -> None:
    said = refusal(folder / "model.safetensors")
    assert "a file" in said
    assert str(folder) in said


def test_folder_above_the_model_leads_to_it(folder: Path) -> None:
    assert f"Did you mean {folder}?" in refusal(folder.parent)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_pickled_weights_are_refused_and_never_opened(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    trap = folder.parent / "executed"
    (folder / name).write_bytes(f"cposix\nsystem\n(S'touch {trap}'\ntR.".encode())
    said = refusal(folder)
    assert name in said
    assert "can execute code" in said
    assert not trap.exists()


def test_half_copied_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "is incomplete" in refusal(folder)


def test_pointer_of_git_lfs(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in refusal(folder)


@pytest.mark.parametrize("named", ["../secret", "/etc/passwd", "..", "", 7, ["x"], None])
def test_index_that_names_files_elsewhere(folder: Path, named: object) -> None:
    index = {"weight_map": {"weight": named}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "files outside of its folder" in refusal(folder)


LYING_TABLES = {
    "longer than the file": (2**62).to_bytes(8, "little"),
    "longer than is read": (10**8).to_bytes(8, "little") + b"{",
    "no object": (9).to_bytes(8, "little") + b"[" * 9,
    "more numbers than there are": _header(
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ),
    "from behind": _header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
}


@pytest.mark.parametrize("header", LYING_TABLES.values(), ids=LYING_TABLES)
def test_weights_whose_own_table_lies(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(header + b"\0\0\0\0")
    assert "is incomplete" in refusal(folder)


def test_settings_that_are_too_deep_to_be_read(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match="is not JSON"):
        pretrained.read_config(folder)


def test_missing_part_of_weights_in_several_files(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1-of-2.safetensors")
    index = {"weight_map": {"weight": "model-1-of-2.safetensors", "bias": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks weights: model-2-of-2.safetensors is missing" in refusal(folder)


def test_broken_config_and_code_from_a_hub(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(ValueError, match="is not JSON"):
        pretrained.read_config(folder)
    (folder / "config.json").write_text('{"attn_implementation": "somebody/kernel"}')
    with pytest.raises(ValueError, match="requires code from a model hub"):
        pretrained.read_config(folder)


def test_models_of_the_wrong_format_lead_to_the_right_choice(tmp_path: Path) -> None:
    of_transformers = write_folder(tmp_path / "a")
    of_timm = write_folder(tmp_path / "b", architecture="resnet18")
    (of_timm / "config.json").write_text('{"architecture": "resnet18"}')
    with pytest.raises(ValueError, match="choose model timm_image"):
        hf_text.build(spec(), ModelOptions(pretrained_path=str(of_timm)))
    with pytest.raises(ValueError, match=r"not a model in timm's format.*bert, a model of transformers"):
        timm_image.build(spec(input_shape=(1, 8, 8)), ModelOptions(pretrained_path=str(of_transformers)))
    translator = write_folder(tmp_path / "c", model_type="t5", is_encoder_decoder=True)
    with pytest.raises(ValueError, match="hf_causal cannot use a model of type t5"):
        hf_causal.build(spec(), ModelOptions(pretrained_path=str(translator)))


def test_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="has no tokenizer"):
        hf_text.tokenizer(ModelOptions(pretrained_path=str(folder)))


@pytest.mark.parametrize("name", ["transformers", "timm", "peft"])
def test_missing_package_is_said_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # Python then raises the error of a missing package
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    with pytest.raises(NotInstalledError, match=INSTALL) as raised:
        getattr(pretrained, f"import_{name}")(offline=True)
    assert name in str(raised.value)


@pytest.mark.parametrize(("offline", "expected"), [(True, "1"), (False, None)])
def test_hub_is_switched_off_before_a_package_is_imported(
    monkeypatch: pytest.MonkeyPatch, offline: bool, expected: str | None
) -> None:
    seen: dict[str, str | None] = {}
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def imported(name: str) -> Any:
        seen[name] = os.environ.get("HF_HUB_OFFLINE")
        return sys

    monkeypatch.setattr(importlib, "import_module", imported)
    pretrained.import_timm(offline=offline)
    assert seen == {"timm": expected}


def test_pins_are_those_of_the_requirements_file() -> None:
    lines = (REPOSITORY / "requirements-finetune.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line for line in lines if line and not line.startswith("#")}
    registry.discover_all()
    models = [registry.models()[name] for name in MODELS]
    of_options = {package for model in models for each in model.options.values() for package in each}
    assert pinned == of_options | {package for model in models for package in model.requires}
    assert not any(line.startswith("torch==") for line in pinned)


@pytest.mark.slow
def test_importing_all_plugins_brings_none_of_the_optional_packages() -> None:
    imports = "import sys; from trainers import registry; from trainers.plugins import catalog"
    code = f"{imports}; print(registry.discover_all(), *sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True
    )
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert {"trainers", "torch"} <= loaded
    assert not {"transformers", "timm", "torchvision", "peft", "accelerate", "tokenizers"} & loaded
    assert set(MODELS) <= set(registry.models())


class Half(nn.Module):
    """Uses one of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.used(x)).relu()


def test_only_parameters_without_a_gradient_are_set_aside() -> None:
    network = Half()
    assert pretrained.freeze_unused(network, torch.ones(2, 3)) == ["unused.weight", "unused.bias"]
    network(torch.ones(2, 3)).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), name
    assert network.training


def test_text_that_is_too_long_for_the_places_is_said() -> None:
    network = gpt.Gpt(30, 8, gpt.Shape(1, 2, 8))
    with pytest.raises(ValueError, match="does not support 9 tokens: choose a smaller sequence_length"):
        pretrained.freeze_unused(network, torch.zeros(1, 9, dtype=torch.long))


def test_looking_ahead_is_found_out() -> None:
    torch.manual_seed(0)
    honest = gpt.Gpt(30, 8, gpt.Shape(1, 2, 8))
    for block in honest.blocks:  # blocks start as the identity, which cannot look ahead
        nn.init.normal_(block.attention_out.weight)
    tokens = torch.arange(8).unsqueeze(0)
    assert not hf_causal.is_not_causal(honest, tokens)
    for block in honest.blocks:
        block.is_causal = False
    assert hf_causal.is_not_causal(honest, tokens)


class Known:
    """The part of a transformers model that `check_tokens` uses."""

    def __init__(self, num_tokens: int, most: int | None) -> None:
        self._embeddings = nn.Embedding(num_tokens, 2)
        self.config = self
        self.max_position_embeddings = most

    def get_input_embeddings(self) -> nn.Embedding:
        return self._embeddings

    def get_text_config(self) -> Known:
        return self


def test_tokens_that_do_not_go_together_are_said(folder: Path) -> None:
    pretrained_text.check_tokens(spec(), 30, Known(32, 8), folder)
    with pytest.raises(ValueError, match="has 30 tokens, but the model has only 20"):
        pretrained_text.check_tokens(spec(), 30, Known(20, 8), folder)
    with pytest.raises(ValueError, match="does not use the model's tokenizer"):
        pretrained_text.check_tokens(spec(vocabulary_size=29), 30, Known(32, 8), folder)
    with pytest.raises(ValueError, match=r"sequence_length is 8, but .* reads at most 7 tokens"):
        pretrained_text.check_tokens(spec(), 30, Known(32, 7), folder)


def test_padding_is_neither_seen_nor_counted() -> None:
    assert hf_text.attention_mask(torch.tensor([[5, 6, 0], [0, 0, 0]]), 0).tolist() == [[1, 1, 0], [1, 0, 0]]
    assert hf_text.attention_mask(torch.tensor([[5, 0, 1]]), 1).tolist() == [[1, 1, 0]]


def test_classes_a_trained_model_knows() -> None:
    reader = {"architectures": ["BertModel"], "id2label": {"0": "a", "1": "b"}}
    classifier = {"architectures": ["BertForSequenceClassification"]}
    assert hf_text.num_trained_classes(reader) == 0
    assert hf_text.num_trained_classes(classifier) == 2
    assert hf_text.num_trained_classes(classifier | {"id2label": {"0": "a", "1": "b", "2": "c"}}) == 3
    assert hf_text.num_trained_classes({}) == 0


@pytest.mark.parametrize(
    ("side", "step", "expected"), [(8, 32, 64), (64, 32, 64), (65, 32, 96), (28, 14, 70)]
)
def test_small_images_are_enlarged_to_whole_patches(side: int, step: int, expected: int) -> None:
    assert timm_image.enlarged(side, step) == expected


def test_resizing_keeps_what_an_image_shows() -> None:
    image = torch.zeros(1, 1, 4, 4)
    image[..., :2] = 1.0
    seen = timm_image.Resized(nn.Identity(), (8, 16))(image)
    assert seen.shape == (1, 1, 8, 16)
    assert seen[..., :6].min() == 1.0
    assert seen[..., 10:].max() == 0.0
    assert timm_image.Resized(nn.Identity(), None)(image) is image
