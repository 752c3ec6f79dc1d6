"""The weights of a checkpoint as one file that other programs read too: safetensors."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from trainers.checkpoint import checkpoint_files as files
from trainers.checkpoint.loaded_state import load_tensors

log = logging.getLogger(__name__)

SAFETENSORS = "model.safetensors"
TORCH = "model.pt"
# safetensors has the system's error only as text.
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def write(folder: Path, weights: Mapping[str, Tensor]) -> Path:
    """Write weights by name, each tensor once, and return the file; without safetensors it is `model.pt`.

    Tied weights are one tensor under two names. The format has no word for that; as is the custom
    (Hugging Face `save_model`), the file's metadata maps the name left out to the one written.

    Raises:
        OSError: when the file cannot be written.
    """
    if not is_safetensors_there():
        log.warning("safetensors is not installed: the weights go to %s, which only torch reads", TORCH)
        files.write_tensors(folder / TORCH, dict(weights))
        return folder / TORCH
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    first_names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, weight in weights.items():
        first = first_names.setdefault(id(weight), name)
        if first != name:
            tied[name] = first
    own = {name: weight.contiguous() for name, weight in weights.items() if name not in tied}
    try:
        save_file(own, folder / SAFETENSORS, metadata={"format": "pt", **tied})
    except SafetensorError as error:
        if found := _SYSTEM_ERROR.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder / SAFETENSORS)) from error
        raise OSError(str(error)) from error
    return folder / SAFETENSORS


def read(folder: Path) -> dict[str, Tensor]:
    """Return the weights by name, in host memory.

    Raises:
        CheckpointError: when the file holds no weights, or its package is not installed.
    """
    if not (folder / SAFETENSORS).exists():
        return load_weights(folder / TORCH)
    if not is_safetensors_there():
        raise files.CheckpointError(
            f"{folder.name} holds its weights as {SAFETENSORS}, but safetensors is not installed"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / SAFETENSORS, framework="pt", device="cpu") as file:
            found: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise files.CheckpointError(f"{SAFETENSORS} is not whole or altered ({error})") from error
    tied = {name: found[kept] for name, kept in metadata.items() if name not in found and kept in found}
    return found | tied


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights in a file of torch's.

    Raises:
        CheckpointError: when it holds something else.
    """
    weights = load_tensors(path)
    if not isinstance(weights, dict):
        raise files.CheckpointError(f"{path.name} holds no weights by name (damaged or altered)")
    return weights


def is_safetensors_there() -> bool:
    """Tell whether the safetensors package can be imported."""
    return importlib.util.find_spec("safetensors") is not None
