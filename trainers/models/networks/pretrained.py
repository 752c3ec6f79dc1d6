"""Shared code of models that start from a pretrained model in a folder: optional packages and checks.

transformers and timm are imported only when such a model is chosen: both are optional and take seconds to
import. Models are never downloaded, and no code in a folder is executed: weights are read only as
safetensors, and models that need code from the folder are refused.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainers.contract.rundir import library_error_text
from trainers.data.dataset import NotInstalledError
from trainers.files.json_files import parse_json

log = logging.getLogger(__name__)

INSTALL = "pip install -r requirements-finetune.txt"
TRANSFORMERS = "transformers==5.23.0"
TIMM = "timm==1.0.31"
TORCHVISION = "torchvision==0.28.0"
PEFT = ("peft==0.21.2", "accelerate==1.15.0")

PICKLED_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")

# Operators that torchvision registers in Python on import, even if its compiled library is missing.
_TORCHVISION_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_transformers(*, offline: bool) -> ModuleType:
    """Return the package transformers.

    Args:
        offline: disable network access; has an effect only before the first import.

    Raises:
        NotInstalledError: if it is missing; contains the command that installs it.
    """
    transformers = _import_optional("transformers", offline=offline)
    # Suppress warnings about unused or new weights; `pretrained_text.load` reports the relevant ones.
    transformers.utils.logging.set_verbosity_error()
    return transformers


def import_timm(*, offline: bool) -> ModuleType:
    """Return the package timm; `offline` and errors as for `import_transformers`."""
    return _import_optional("timm", offline=offline)


def import_peft(*, offline: bool) -> ModuleType:
    """Return the package peft; `offline` and errors as for `import_transformers`."""
    return _import_optional("peft", offline=offline)


def _import_optional(name: str, *, offline: bool) -> ModuleType:
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    # Progress bars would fill the rank's log.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        declare_torchvision_operators()  # transformers also imports torchvision if installed
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalledError(f"This model needs {name} ({error}). Install it with: {INSTALL}") from error


@functools.cache
def declare_torchvision_operators() -> torch.library.Library | None:
    """Declare operators without which torchvision cannot be imported; return the library that owns them.

    torchvision's compiled library is built against one build of torch and cannot be loaded with another one
    (for example PyPI's torchvision with torch for the CPU). torchvision works without this library, but
    registers fake kernels for two operators, which torch requires to be declared first. A declared operator
    fails when called; timm and transformers do not call them for the models used here.

    `functools.cache` keeps the library object alive, because its declarations vanish when it is collected.
    """
    module_spec = None if "torchvision" in sys.modules else importlib.util.find_spec("torchvision")
    if module_spec is None or not module_spec.submodule_search_locations:
        return None
    folder = Path(next(iter(module_spec.submodule_search_locations)))
    try:
        for library_path in folder.glob("_C.*"):
            torch.ops.load_library(str(library_path))
            return None
    except OSError as error:
        log.info("torchvision's operators are incompatible with this torch, but not needed: %s", error)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _TORCHVISION_OPERATORS:
        library.define(name + _SIGNATURE)
    return library


def model_folder(path: str, model: str) -> Path:
    """Return the folder of a pretrained model after checking its contents.

    Args:
        path: the configuration's `pretrained_path`.
        model: name of the chosen model, for messages.

    Raises:
        ValueError: if it cannot be used; gives the reason and the remedy.
    """
    if not path:
        raise ValueError(f"pretrained_path is empty, but {model} needs a pretrained model: set its folder")
    folder = Path(path).expanduser()
    if not folder.exists():
        hint = "Check the spelling."
        if _HUB_NAME.fullmatch(path):
            hint = (
                "The path looks like a name on a model hub, but this program downloads nothing. Run: hf "
                f"download {path} --local-dir FOLDER, then set the path of this folder."
            )
        raise ValueError(f"pretrained_path is {path!r}, which is not on this machine. {hint}")
    if not folder.is_dir():
        raise ValueError(
            f"pretrained_path is {path!r}, which is a file: set the path of its folder ({folder.parent})"
        )
    if not (folder / "config.json").is_file():
        nearby = sorted(config_path.parent for config_path in folder.glob("*/config.json"))
        hint = (
            f"Did you mean {nearby[0]}?"
            if nearby
            else "Set the path of the folder that contains config.json."
        )
        raise ValueError(f"{folder} has no config.json, so it is not a model in Hugging Face format. {hint}")
    check_weights(folder)
    return folder


def check_weights(folder: Path) -> None:
    """Check that a folder has complete weights in a format that cannot execute code.

    Raises:
        ValueError: if not; gives the reason and the remedy.
    """
    index = folder / "model.safetensors.index.json"
    files = [folder / "model.safetensors"]
    if index.is_file():
        files = _read_index(index)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        pickled = sorted(path.name for pattern in PICKLED_WEIGHTS for path in folder.glob(pattern))
        if pickled and not index.is_file():
            raise ValueError(
                f"{folder} has its weights only as {pickled[0]}, which is refused, because loading such a "
                "file can execute code: get the model as model.safetensors (docs/fine-tuning.md)"
            )
        raise ValueError(f"{folder} lacks weights: {', '.join(missing)} is missing. Copy the files again")
    for file in files:
        with file.open("rb") as opened:
            is_pointer = opened.read(32).startswith(b"version https://git-lfs")
        if is_pointer:
            raise ValueError(f"{file} is only a pointer of Git LFS. Run git lfs pull in its folder")
        try:
            with safe_open(file, framework="pt"):  # checks the file's size against its header
                pass
        except SafetensorError as error:
            raise ValueError(f"{file} is incomplete ({error}). Copy it again") from error


def _read_index(index: Path) -> list[Path]:
    """Return the files that an index distributes weights over.

    Raises:
        ValueError: if the index names anything except files in its own folder.
    """
    weight_map = _read_json(index).get("weight_map")
    names = (
        set(weight_map.values())
        if isinstance(weight_map, dict) and all(_is_text(v) for v in weight_map.values())
        else {""}
    )
    if not all(name == Path(name).name and name not in ("", "..") for name in names):
        raise ValueError(f"{index} names files outside of its folder. Copy the model again")
    return [index.parent / name for name in sorted(names)]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json.

    Raises:
        ValueError: if it is not JSON, or requires code from a model hub.
    """
    config = _read_json(folder / "config.json")
    for key in ("attn_implementation", "experts_implementation"):
        if "/" in str(config.get(key, "")):
            raise ValueError(
                f"{folder / 'config.json'} requires code from a model hub ({key}), which is not run"
            )
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}). Copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object. Copy the file again")
    return content


def freeze_unused(network: nn.Module, example: Tensor) -> list[str]:
    """Freeze the trained parameters that the output does not depend on; return their names.

    DDP waits for a gradient of each trained parameter and raises an error if one has none.

    Raises:
        ValueError: if the example is longer than the model's maximum.
    """
    network.eval()
    try:
        used = _parameters_behind(network(example))
    except IndexError as error:
        # RoBERTa-like models number positions from padding + 1, so their limit is below the configured one.
        raise ValueError(
            f"the model does not support {example.shape[1]} tokens: choose a smaller sequence_length"
        ) from error
    # Frozen parameters, such as those below adapters, are not part of the graph.
    trained = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
    unused = [name for name, parameter in trained if parameter not in used]
    for name in unused:
        network.get_parameter(name).requires_grad_(False)
    if unused:
        log.info("frozen, because the output does not depend on them: %s", ", ".join(unused))
    network.train()
    return unused


def _parameters_behind(output: Tensor) -> set[Tensor]:
    """Return the parameters that a backward pass would reach, by walking the autograd graph."""
    parameters = set()
    visited = set()
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if isinstance(parameter := getattr(node, "variable", None), Tensor):
            parameters.add(parameter)
        stack += [next_node for next_node, _ in node.next_functions]
    return parameters


def shorten_error(error: Exception) -> str:
    """Return the message of an error, on one line and shortened to 300 characters."""
    return textwrap.shorten(library_error_text(error), 300, placeholder=" …")
