"""The description of a trained model, `model.json` in each checkpoint, with which its weights can be used.

It names the architecture and its options, the shape of the input, how an input is prepared (scale of pixels
and columns, tokenizer), and the meaning of the output. docs/checkpoints.md lists the fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers import registry
from trainers.contract.config import Config
from trainers.contract.manifests import DESCRIPTION
from trainers.contract.rundir import Checkpoint
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_REGRESSION,
    DataSpec,
    Split,
    TableColumn,
    Tokenizer,
)
from trainers.data.text import NUM_SPECIAL, CharacterTokenizer, WordTokenizer
from trainers.files.json_files import read_json
from trainers.machine.os_errors import explain

VERSION = 1
IMAGE, TABLE, TEXT = "image", "table", "text"
# Number of samples from which the ranges of pixels and columns are measured.
NUM_MEASURED = 1_000
# Maximum of sides, columns, classes and tokens: another user may have written a description, from which a
# network is built.
MAX_COUNT = 2**24
# Pixels that differ from the background by more than this share of the range belong to the object.
INK_SHARE = 0.1

Description = Mapping[str, Any]


class DescriptionError(ValueError):
    """A description is missing or wrong; the message names the field."""


def describe(config: Config, spec: DataSpec, split: Split, network: nn.Module) -> dict[str, Any]:
    """Return the description of a network for this data, as JSON values.

    Args:
        split: the training or the validation split; its first samples determine the ranges.
    Raises:
        ValueError: if the split normalises images other than by mean and standard deviation.
    """
    inputs: dict[str, Any] = {"shape": list(spec.input_shape)}
    if spec.task == IMAGE_CLASSIFICATION:
        inputs |= {"kind": IMAGE, **_read_scale(split, spec), **_describe_images(split)}
    elif spec.vocabulary_size:
        inputs |= {"kind": TEXT, "padding": spec.padding, "vocabulary_size": spec.vocabulary_size}
        inputs["tokenizer"] = describe_tokenizer(split.tokenizer, spec)
    else:
        scale = _read_scale(split, spec)
        inputs |= {"kind": TABLE, **scale, **_describe_table(spec, split, scale)}
    output: dict[str, Any] = {"num_classes": spec.num_classes}
    if spec.task == TABULAR_REGRESSION:
        output |= {"mean": spec.target_mean, "std": spec.target_std}
    elif spec.task != LANGUAGE_MODELLING:
        output["class_names"] = list(spec.class_names)
    return {
        "format_version": VERSION,
        "model": {
            "name": config.model,
            "size": config.model_size or registry.models()[config.model].default_size,
            "pretrained_path": config.pretrained_path,
            "lora_rank": registry.ModelOptions.of(config).lora_rank,
            **describe_network(network),
        },
        "task": spec.task,
        "input": inputs,
        "output": output,
        "data": {
            "name": config.dataset,
            "description": spec.description,
            "source": spec.source,
            "sample_unit": spec.sample_unit,
            "num_train": spec.num_train,
            "num_validation": spec.num_validation,
        },
    }


def describe_network(network: nn.Module) -> dict[str, Any]:
    """Return the fields of `model` that follow from a network."""
    return {
        "num_parameters": sum(parameter.numel() for parameter in network.parameters()),
        "layers": str(network).splitlines(),
    }


def read(item: Checkpoint) -> dict[str, Any] | None:
    """Return the description in a checkpoint, or None: older checkpoints have none.

    Raises:
        DescriptionError: if it cannot be read, or a field is missing or wrong.
    """
    try:
        values = read_json(item.path / DESCRIPTION)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = explain(error)
        raise DescriptionError(f"{DESCRIPTION} of step {item.step:,} cannot be read ({reason})") from error
    check(values)
    checked: dict[str, Any] = values
    return checked


def check(description: Any) -> None:
    """Check the fields that are needed to build the network and to prepare an input.

    Raises:
        DescriptionError: naming the field that is missing or wrong.
    """
    _require(isinstance(description, dict), DESCRIPTION, "an object")
    version = description.get("format_version")
    allowed = f"{VERSION}, and it is {str(version)[:40]}"
    _require(version == VERSION, f"format_version in {DESCRIPTION}", allowed)
    for name in ("model", "input", "output"):
        _require(isinstance(description.get(name), dict), f"{name} in {DESCRIPTION}", "an object")
    model, inputs, output = description["model"], description["input"], description["output"]
    for name in ("name", "size", "pretrained_path"):
        _require(isinstance(model.get(name), str), f"model.{name}", "a text")
    lora_rank = model.get("lora_rank", 0)  # absent before schema version 10 of the configuration
    _require(lora_rank == 0 or _is_count(lora_rank), "model.lora_rank", "a whole number")
    _require(isinstance(description.get("task"), str), "task", "a text")
    shape = inputs.get("shape")
    is_shape = isinstance(shape, list) and 0 < len(shape) <= 3 and all(_is_count(side) for side in shape)
    _require(is_shape and math.prod(shape) <= 2**27, "input.shape", "a list of one to three sizes")
    kind = inputs.get("kind")
    _require(kind in (IMAGE, TABLE, TEXT), "input.kind", f"one of {IMAGE}, {TABLE}, {TEXT}")
    _require(_is_count(output.get("num_classes")), "output.num_classes", "a number of classes")
    _require(_are_texts(output.get("class_names", [])), "output.class_names", "a list of texts")
    if kind in (IMAGE, TABLE):
        width = shape[0]
        for name in ("mean", "std"):
            values = inputs.get(name)
            are_numbers = isinstance(values, list) and len(values) == width and all(map(_is_number, values))
            _require(are_numbers, f"input.{name}", f"a list of {width} numbers")
    largest = inputs.get("largest", 255)
    _require(_is_number(largest) and largest > 0, "input.largest", "a positive number")
    if kind == TABLE:
        _require(_are_texts(inputs.get("feature_names")), "input.feature_names", "a list of texts")
        _require(isinstance(inputs.get("columns"), list), "input.columns", "a list of columns")
        columns = columns_of(inputs)
        _require(
            sum(column.width for column in columns) == shape[0], "input.columns", f"{shape[0]} numbers wide"
        )
    if kind == TEXT:
        _require(_is_count(inputs.get("vocabulary_size")), "input.vocabulary_size", "a number of tokens")
        _require(isinstance(inputs.get("padding"), int), "input.padding", "a token")
        tokenizer = inputs.get("tokenizer")
        _require(isinstance(tokenizer, dict), "input.tokenizer", "an object")
        assert isinstance(tokenizer, dict)
        _require(tokenizer.get("kind") in _TOKENIZERS, "tokenizer.kind", f"one of {', '.join(_TOKENIZERS)}")
        _require(_are_texts(tokenizer.get("vocabulary", [])), "tokenizer.vocabulary", "a list of texts")
    else:
        _require("std" not in output or _is_number(output["std"]), "output.std", "a number")
        _require("mean" not in output or _is_number(output["mean"]), "output.mean", "a number")


def spec_of(description: Description) -> DataSpec:
    """Return the data specification for which the network was built."""
    inputs, output, data = description["input"], description["output"], description.get("data", {})
    is_language = description["task"] == LANGUAGE_MODELLING
    vocabulary = inputs.get("tokenizer", {}).get("vocabulary", [])
    return DataSpec(
        task=description["task"],
        input_shape=tuple(inputs["shape"]),
        num_classes=output["num_classes"],
        class_names=tuple(vocabulary if is_language else output.get("class_names", ())),
        num_train=0,
        num_validation=0,
        sample_unit=str(data.get("sample_unit", "samples")),
        description="",
        source="",
        vocabulary_size=inputs.get("vocabulary_size", 0),
        padding=inputs.get("padding", 0),
        feature_names=tuple(inputs.get("feature_names", ())),
        columns=tuple(columns_of(inputs)),
        target_mean=output.get("mean", 0.0),
        target_std=output.get("std", 1.0),
    )


def columns_of(inputs: Mapping[str, Any]) -> list[TableColumn]:
    """Return the columns of a table's description.

    Raises:
        DescriptionError: if a column is wrong.
    """
    columns = []
    for column in inputs.get("columns", []):
        is_column = (
            isinstance(column, dict)
            and isinstance(column.get("name"), str)
            and _are_texts(column.get("values", []))
        )
        _require(is_column, "input.columns", "a list of columns, each with a name and values")
        columns.append(
            TableColumn(
                name=column["name"],
                values=tuple(column.get("values", ())),
                has_other=bool(column.get("has_other")),
                has_missing=bool(column.get("has_missing")),
            )
        )
    return columns


WORDS, CHARACTERS, LETTERS, PRETRAINED = "words", "characters", "all_characters", "pretrained"
_TOKENIZERS = (WORDS, CHARACTERS, LETTERS, PRETRAINED)


def describe_tokenizer(tokenizer: Tokenizer | None, spec: DataSpec) -> dict[str, Any]:
    """Return a tokenizer as JSON values; a pretrained model's own is only named.

    Without a tokenizer, each class of a language model is a character.
    """
    if isinstance(tokenizer, WordTokenizer):
        return {
            "kind": WORDS,
            "pattern": WordTokenizer.pattern,
            "lower_case": True,
            "first_number": NUM_SPECIAL,
            "vocabulary": list(tokenizer.words),
        }
    if isinstance(tokenizer, CharacterTokenizer):
        return {"kind": CHARACTERS, "first_number": NUM_SPECIAL, "vocabulary": list(tokenizer.characters)}
    if tokenizer is None and spec.class_names and spec.task == LANGUAGE_MODELLING:
        return {"kind": LETTERS, "first_number": 0, "vocabulary": list(spec.class_names)}
    return {"kind": PRETRAINED}


def tokenizer_of(inputs: Mapping[str, Any]) -> WordTokenizer | CharacterTokenizer | None:
    """Return the tokenizer of a description; None for characters of a language model, or a pretrained one."""
    tokenizer = inputs["tokenizer"]
    if tokenizer["kind"] == WORDS:
        return WordTokenizer(tokenizer["vocabulary"])
    return CharacterTokenizer(tokenizer["vocabulary"]) if tokenizer["kind"] == CHARACTERS else None


def _read_scale(split: Split, spec: DataSpec) -> dict[str, list[float]]:
    """Return mean and deviation of each channel or column, after checking that the split applies them."""
    width = spec.input_shape[0]
    scale = split.preparation() or {"mean": [0.0] * width, "std": [1.0] * width}
    inputs, _ = split.batch(torch.zeros(1, dtype=torch.int64, device=split.device))
    if spec.task == IMAGE_CLASSIFICATION:
        mean, std = (torch.tensor(scale[name]).view(-1, 1, 1) for name in ("mean", "std"))
        if not torch.allclose(split.prepare(inputs).cpu(), (inputs.cpu().float() - mean) / std, atol=1e-4):
            raise ValueError(
                f"{type(split).__name__}.preparation does not describe what its method prepare computes"
            )
    return scale


def _describe_images(split: Split) -> dict[str, Any]:
    """Return the largest pixel value, the brightness of the background, and the share of an image that
    objects fill.

    The page converts a user's drawing to the same range, background and object size.
    """
    images = _first_inputs(split).float()
    largest = _largest_value(images)
    edges = torch.cat([images[..., 0, :].flatten(), images[..., -1, :].flatten()])
    background = float(edges.median())
    is_object = ((images - background).abs() > INK_SHARE * largest).any(dim=1)
    spans = torch.stack([_span(is_object.any(dim=side)) for side in (1, 2)]).amax(dim=0)
    return {
        "largest": largest,
        "background": round(background),
        "extent": round(float(spans.mean()) or 1.0, 3),
    }


def largest_pixel(split: Split) -> int:
    """Return the largest value that pixels can have, from the first images of a split."""
    return _largest_value(_first_inputs(split))


def _largest_value(images: Tensor) -> int:
    return 255 if float(images.max()) > 127 else max(1, int(images.max()))


def _span(is_object: Tensor) -> Tensor:
    """Return the share of each row that lies between its first and last true value; (rows, places)."""
    length = is_object.shape[1]
    positions = torch.arange(length).expand_as(is_object)
    first = torch.where(is_object, positions, length).amin(dim=1)
    last = torch.where(is_object, positions, -1).amax(dim=1)
    return (last - first + 1).clamp_min(0) / length


def _describe_table(spec: DataSpec, split: Split, scale: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return names, columns, and the range of each number in the column's own units."""
    inputs = _first_inputs(split)
    mean, std = torch.tensor(scale["mean"]), torch.tensor(scale["std"])
    low, high = (inputs.amin(0) * std + mean).tolist(), (inputs.amax(0) * std + mean).tolist()
    names = list(spec.feature_names) or [f"column {index + 1}" for index in range(inputs.shape[1])]
    columns = spec.columns or [TableColumn(name=name) for name in names]
    return {
        "feature_names": names,
        "columns": [
            {
                "name": column.name,
                "values": list(column.values),
                "has_other": column.has_other,
                "has_missing": column.has_missing,
            }
            for column in columns
        ],
        "low": low,
        "high": high,
    }


def _first_inputs(split: Split) -> Tensor:
    num_inputs = min(NUM_MEASURED, len(split))
    indices = torch.arange(num_inputs) * len(split) // max(1, num_inputs)
    return split.batch(indices.to(split.device))[0].cpu()


def _require(is_valid: bool, field: str, allowed: str) -> None:
    if not is_valid:
        raise DescriptionError(f"{field} must be {allowed}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_COUNT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
