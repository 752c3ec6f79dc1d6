"""Tests of fine-tuning without optional packages; tests/integration/test_finetune.py has them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.harness import REPOSITORY
from tests.unit.fakes import spec_of
from trainers import registry
from trainers.data.dataset import NotInstalledError
from trainers.models import gpt, hf_causal, hf_text, timm_image
from trainers.models.networks import pretrained
from trainers.registry import ModelOptions

INSTALL = "pip install -r requirements-finetune.txt"
MODELS = ("hf_text", "hf_causal", "timm_image")


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


def _header(shape: list[int], begin: int, end: int) -> bytes:
    raw = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}}).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(4)


def refusal(path: Path | str) -> str:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - each test looks at the words
        pretrained.model_folder(str(path), "hf_text")
    return str(raised.value)


def test_path_that_is_no_folder_of_a_model_leads_to_one(folder: Path) -> None:
    empty = "pretrained_path is empty, but hf_text needs a pretrained model: set its folder"
    assert refusal("") == empty
    hub = "hf download google-bert/bert-base-uncased --local-dir FOLDER"
    assert hub in refusal("google-bert/bert-base-uncased")
    file = refusal(folder / "model.safetensors")
    assert "a file" in file
    assert str(folder) in file
    assert f"Did you mean {folder}?" in refusal(folder.parent)


WEIGHTS = {
    "half copied": (lambda raw: raw[:-4], "is incomplete"),
    "pointer of git lfs": (
        lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "git lfs pull",
    ),
    "table longer than the file": (lambda _: (2**62).to_bytes(8, "little") + bytes(4), "is incomplete"),
    "table longer than is read": (lambda _: (10**8).to_bytes(8, "little") + b"{\0\0\0\0", "is incomplete"),
    "table that is no object": (lambda _: (9).to_bytes(8, "little") + b"[" * 9 + bytes(4), "is incomplete"),
    "more numbers than there are": (lambda _: _header([2**40], 0, 2**42), "is incomplete"),
    "numbers from behind": (lambda _: _header([1], 4, 0), "is incomplete"),
}


@pytest.mark.parametrize(("change", "words"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_are_not_whole_or_whose_table_lies(
    folder: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    assert words in refusal(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model_type": ', "is not JSON"),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "is not JSON"),
        ('{"attn_implementation": "somebody/kernel"}', "requires code from a model hub"),
    ],
    ids=["broken", "deep", "code"],
)
def test_settings_that_cannot_be_used(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        pretrained.read_config(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt"])
def test_pickled_weights_are_refused_and_never_opened(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    trap = folder.parent / "executed"
    (folder / name).write_bytes(f"cposix\nsystem\n(S'touch {trap}'\ntR.".encode())
    said = refusal(folder)
    assert name in said
    assert "can execute code" in said
    assert not trap.exists()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        *((name, "files outside of its folder") for name in ("../secret", "/etc/passwd", "..", "", 7, None)),
        ("model-2-of-2.safetensors", "lacks weights: model-2-of-2.safetensors is missing"),
    ],
)
def test_index_that_names_files_elsewhere_or_that_are_missing(
    folder: Path, named: object, words: str
) -> None:
    index = {"weight_map": {"weight": named}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert words in refusal(folder)


def test_models_of_the_wrong_format_lead_to_the_right_choice(tmp_path: Path) -> None:
    of_transformers = write_folder(tmp_path / "a")
    of_timm = write_folder(tmp_path / "b", architecture="resnet18")
    (of_timm / "config.json").write_text('{"architecture": "resnet18"}')
    with pytest.raises(ValueError, match="choose model timm_image"):
        hf_text.build(spec_of("text_classification", 2), ModelOptions(pretrained_path=str(of_timm)))
    with pytest.raises(ValueError, match=r"not a model in timm's format.*bert, a model of transformers"):
        timm_image.build(
            spec_of("image_classification", 2, input_shape=(1, 8, 8)),
            ModelOptions(pretrained_path=str(of_transformers)),
        )
    translator = write_folder(tmp_path / "c", model_type="t5", is_encoder_decoder=True)
    with pytest.raises(ValueError, match="hf_causal cannot use a model of type t5"):
        hf_causal.build(spec_of("text_classification", 2), ModelOptions(pretrained_path=str(translator)))


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


def test_text_that_is_too_long_for_the_places_is_said() -> None:
    network = gpt.Gpt(30, 8, gpt.Shape(1, 2, 8))
    with pytest.raises(ValueError, match="does not support 9 tokens: choose a smaller sequence_length"):
        pretrained.freeze_unused(network, torch.zeros(1, 9, dtype=torch.long))
