"""Weights and optimizer state: writing, reading and validating their files."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import math
import os
import pickle  # nosec B403
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.serialization import get_crc32_options, set_crc32_options

from trainers.contract.checkpoint_files import CheckpointError
from trainers.files.plain_files import open_plain

log = logging.getLogger(__name__)

SAFETENSORS = "model.safetensors"
TORCH = "model.pt"
# safetensors reports the system's error only as text.
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def write_tensors(path: Path, state: object) -> None:
    """Write tensors and plain values with `torch.save`."""
    # The zip's CRC32 of each tensor is not needed: the manifest has a stronger checksum of the entire file.
    computes_crc32 = get_crc32_options()
    set_crc32_options(False)
    try:
        # Pass a Python file object: if torch opens the file, its errors lack the system's reason.
        with path.open("wb") as file:
            torch.save(state, file)
    finally:
        set_crc32_options(computes_crc32)


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> Path:
    """Write weights by name, each tensor once, and return the file; without safetensors it is `model.pt`.

    Tied weights are one tensor under two names, which the format cannot express; following Hugging Face's
    `save_model`, the file's metadata maps the omitted name to the written one.

    Raises:
        OSError: if the file cannot be written.
    """
    if not is_safetensors_installed():
        log.warning(
            "safetensors is not installed: the weights are written to %s, which only torch can read", TORCH
        )
        write_tensors(folder / TORCH, dict(weights))
        return folder / TORCH
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    first_names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, weight in weights.items():
        first_name = first_names.setdefault(id(weight), name)
        if first_name != name:
            tied[name] = first_name
    distinct = {name: weight.contiguous() for name, weight in weights.items() if name not in tied}
    try:
        save_file(distinct, folder / SAFETENSORS, metadata={"format": "pt", **tied})
    except SafetensorError as error:
        if match := _SYSTEM_ERROR.search(str(error)):
            raise OSError(int(match[1]), os.strerror(int(match[1])), str(folder / SAFETENSORS)) from error
        raise OSError(str(error)) from error
    return folder / SAFETENSORS


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights by name, in host memory.

    Raises:
        CheckpointError: if the file contains no weights, or the safetensors package is missing.
    """
    if not (folder / SAFETENSORS).exists():
        weights = load_tensors(folder / TORCH)
        if not isinstance(weights, dict):
            raise CheckpointError(f"{TORCH} does not contain weights by name (damaged or altered)")
        return weights
    if not is_safetensors_installed():
        raise CheckpointError(
            f"the weights of {folder.name} are in {SAFETENSORS}, but the package safetensors is not installed"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / SAFETENSORS, framework="pt", device="cpu") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise CheckpointError(f"{SAFETENSORS} is damaged or altered ({error})") from error
    tied = {
        name: tensors[written_name]
        for name, written_name in metadata.items()
        if name not in tensors and written_name in tensors
    }
    return tensors | tied


def is_safetensors_installed() -> bool:
    """Return True if the safetensors package is installed."""
    return importlib.util.find_spec("safetensors") is not None


_FORBIDDEN_CLASS = re.compile(r"GLOBAL ([\w.]+)")


def load_tensors(path: Path) -> Any:
    """Load a file of `torch.save` into host memory if it contains only tensors and plain values.

    Raises:
        CheckpointError: with our own message, because torch's message suggests loading the file with pickle.
    """
    try:
        with open_plain(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        match = _FORBIDDEN_CLASS.search(str(error))
        problem = f"contains {match[1][:80]}, which is not data" if match else "is not a file of tensors"
        raise CheckpointError(
            f"{path.name} {problem} (damaged or altered); none of it was executed"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.strerror})") from None
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError):
        raise CheckpointError(f"{path.name} is not a file of tensors (damaged or altered)") from None


def check_weights(network: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Check that weights match a network.

    Raises:
        CheckpointError: naming the first weight that is missing, unknown or of another shape.
    """
    expected = network.state_dict()
    for missing in sorted(expected.keys() - weights.keys()):
        raise CheckpointError(f"{name} lacks {missing!r}")
    for unknown in sorted(weights.keys() - expected.keys()):
        raise CheckpointError(f"{name} has {unknown[:80]!r}, which the model does not have")
    for key, tensor in expected.items():
        if isinstance(tensor, Tensor):
            _check_tensor(weights[key], tensor.shape, f"{key!r} in {name}", dtype=tensor.dtype)


def check_optimizer(optimizer: torch.optim.Optimizer, state: Any, name: str) -> None:
    """Check that a state matches this optimizer, so that no later step fails.

    Raises:
        CheckpointError: naming the field that is missing or wrong.
    """
    current = optimizer.state_dict()
    state = _require_mapping(state, name)
    for key in current:
        if not isinstance(state.get(key), type(current[key])):
            raise CheckpointError(f"{name} lacks {key!r}, or it is not a {type(current[key]).__name__}")
    if len(state["param_groups"]) != len(current["param_groups"]):
        groups = len(state["param_groups"])
        raise CheckpointError(
            f"{name} has {groups} parameter groups, but the optimizer has {len(current['param_groups'])}"
        )
    for group_index, (group, current_group) in enumerate(
        zip(state["param_groups"], current["param_groups"], strict=True)
    ):
        _check_group(
            _require_mapping(group, f"group {group_index} in {name}"),
            current_group,
            f"group {group_index} in {name}",
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected = _expected_entries(optimizer)
    for index, values in state["state"].items():
        location = f"the state of parameter {str(index)[:20]} in {name}"
        if not isinstance(index, int) or not 0 <= index < len(parameters):
            raise CheckpointError(
                f"{location} does not belong to any of the model's {len(parameters)} parameters"
            )
        _check_entry(_require_mapping(values, location), expected, parameters[index], location)


def check_random_state(state: Any, name: str) -> None:
    """Check that every random generator can be set to a state.

    Raises:
        CheckpointError: naming the field that is missing or wrong.
    """
    state = _require_mapping(state, name)
    for key in ("torch", "python"):
        if key not in state:
            raise CheckpointError(f"{name} lacks {key!r}")
    try:
        torch.Generator().set_state(state["torch"])
        version, internal, gauss = state["python"]
        random.Random().setstate((version, tuple(internal), gauss))  # noqa: S311 # nosec B311
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise CheckpointError(f"{name} does not contain the state of the random generators") from None
    if not isinstance(state.get("cuda", state["torch"]), Tensor):
        raise CheckpointError(f"'cuda' in {name} is not a tensor")


def _check_group(group: dict[str, Any], current_group: dict[str, Any], location: str) -> None:
    for key, value in current_group.items():
        is_switch = value is None or isinstance(value, bool)
        if key not in group:
            if is_switch:
                continue  # newer versions of torch add such keys, and fill in defaults
            raise CheckpointError(f"{location} lacks {key!r}")
        if is_switch or key == "params":
            is_same = type(group[key]) is type(value) and group[key] == value
        else:
            is_same = _kind(group[key]) == _kind(value)
        if not is_same:
            raise CheckpointError(f"{key!r} in {location} does not have the expected type or value")


def _kind(value: Any) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float if math.isfinite(value) else "not finite"
    return tuple(map(_kind, value)) if isinstance(value, tuple | list) else type(value)


def _expected_entries(optimizer: torch.optim.Optimizer) -> dict[str, bool]:
    """Return what the optimizer stores per parameter, and whether it is a scalar; runs a tiny instance."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.zeros(2)
    tiny = type(optimizer)([parameter], **options)
    tiny.step()
    return {
        name: value.ndim == 0 for name, value in tiny.state[parameter].items() if isinstance(value, Tensor)
    }


def _check_entry(
    values: dict[str, Any], expected: Mapping[str, bool], parameter: Tensor, location: str
) -> None:
    for key, is_scalar in expected.items():
        if key not in values:
            raise CheckpointError(f"{location} lacks {key!r}")
        shape = torch.Size() if is_scalar else parameter.shape
        _check_tensor(values[key], shape, f"{key!r} in {location}", dtype=torch.float32)


def _check_tensor(value: Any, shape: torch.Size, location: str, *, dtype: torch.dtype) -> None:
    are_floats = isinstance(value, Tensor) and value.is_floating_point() and dtype.is_floating_point
    if not isinstance(value, Tensor) or not (are_floats or value.dtype == dtype):
        raise CheckpointError(f"{location} is not a tensor of the expected dtype")
    if value.shape != shape:
        sizes = [" × ".join(map(str, size)) or "1" for size in (value.shape, shape)]
        raise CheckpointError(f"{location} has {sizes[0]} numbers, but the model has {sizes[1]}")


def _require_mapping(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{location} is not a mapping of names to values (damaged or altered)")
    return value
