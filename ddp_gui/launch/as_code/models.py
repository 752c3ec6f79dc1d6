"""The networks of the catalogue as source text: what `trainers/models` builds, with all sizes filled in.

The texts are in assets/code/models. A test compares their initial weights with those of `trainers/models`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_gui.launch.as_code.templates import NotAsCodeError, render


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """The properties of the data that a network depends on; strings are Python expressions of the script.

    Attributes:
        inputs: shape of a sample.
        num_outputs: the number of scores per prediction.
        vocabulary: number of tokens, for texts.
    """

    inputs: tuple[int, ...]
    num_outputs: str
    vocabulary: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelCode:
    """The text of a network.

    Attributes:
        build: the statements that assign `model`.
        classes: definitions that `build` needs.
        layers: an expression for the layers that a sharded strategy gathers one at a time.
        is_mixture: its forward pass also returns the decisions of its gates.
    """

    build: str
    classes: str
    layers: str = "[layer for layer in model if list(layer.parameters())]"
    has_convolutions: bool = False
    has_batch_norm: bool = False
    is_mixture: bool = False


Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How the text of a model is generated.

    Attributes:
        sizes: the values of each size; the first is the default.
        flags: values of all sizes.
        values: function of a size's values and the data's shape that returns further values.
        about: fields of `ModelCode`.
    """

    template: str
    sizes: Mapping[str, Values]
    flags: Values = field(default_factory=dict)
    values: Callable[[Values, DataShape], Values] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


def model_code(name: str, size: str, shape: DataShape) -> ModelCode:
    """Return the text of a model in a size; "" is the default size.

    Raises:
        NotAsCodeError: if the model or size has no text.
    """
    if name not in KINDS:
        raise NotAsCodeError(
            f"Model {name} cannot be exported as code: it needs packages other than torch and numpy, or is "
            "a plug-in, whose code is a file in trainers/models. Models that can be exported: "
            f"{', '.join(sorted(KINDS))}."
        )
    kind = KINDS[name]
    if size and size not in kind.sizes:
        raise NotAsCodeError(f"Model {name} has no size {size!r}. Its sizes: {', '.join(kind.sizes)}.")
    values = dict(kind.sizes[size or next(iter(kind.sizes))])
    if kind.values is not None:
        values |= kind.values(values, shape)
    text = render(
        f"models/{kind.template}",
        **{**_NO_FLAGS, **kind.flags, **values},
        inputs=shape.inputs,
        num_inputs=math.prod(shape.inputs),
        num_outputs=shape.num_outputs,
        vocabulary=shape.vocabulary,
        # The script computes the size of character vocabularies, or they are small.
        has_rare_words=shape.vocabulary.isdecimal() and int(shape.vocabulary) > 1000,
    )
    classes, start, build = f"\n{text}".rpartition("\nmodel = ")
    return ModelCode(classes=classes.strip("\n"), build=f"{start}{build}".strip("\n"), **kind.about)


# Values of transformers.
_NO_FLAGS = {
    "is_causal": False,
    "is_masked": False,
    "has_dropout": False,
    "has_bias": True,
    "is_mixture": False,
}
LARGEST_GRID = 16


def _cnn(size: Values, shape: DataShape) -> Values:
    """Return pooling and the number of features; see `trainers/models/cnn.py`."""
    _, height, width = shape.inputs
    rounds_up = min(height, width) < 4
    sides = [-(-side // 4) if rounds_up else side // 4 for side in (height, width)]
    grid = [min(side, LARGEST_GRID) for side in sides]
    shrink = ""
    if grid != sides:
        is_whole = all(side % cell == 0 for side, cell in zip(sides, grid, strict=True))
        windows = tuple(side // cell for side, cell in zip(sides, grid, strict=True))
        shrink = f"nn.AvgPool2d({windows})" if is_whole else f"nn.AdaptiveAvgPool2d({tuple(grid)})"
    return {
        "pool": "nn.MaxPool2d(2, ceil_mode=True)" if rounds_up else "nn.MaxPool2d(2)",
        "shrink": shrink,
        "num_features": size["second"] * grid[0] * grid[1],
    }


def _resnet(size: Values, shape: DataShape) -> Values:
    """Return the blocks as (channels, width, stride); see `trainers/models/resnet.py`."""
    side = min(shape.inputs[1:])
    is_large = side >= 64
    side = -(-side // 4) if is_large else side
    current, blocks = size["width"], []
    for stage, num_blocks in enumerate(size["num_blocks"]):
        narrow = size["width"] * 2**stage
        for number in range(num_blocks):
            stride = 2 if stage > 0 and number == 0 and side > 2 else 1
            side = -(-side // stride)
            blocks.append((current, narrow, stride))
            current = narrow * (4 if size["is_deep"] else 1)
    return {"is_large": is_large, "blocks": blocks, "last": current}


def _vit(size: Values, shape: DataShape) -> Values:
    """Return the squares and the padding to whole squares; see `trainers/models/vit.py`."""
    del size
    _, height, width = shape.inputs
    side = max(2, round(max(height, width) / 7))
    return {
        "side": side,
        "num_squares": -(-height // side) * -(-width // side),
        "right": -width % side,
        "bottom": -height % side,
    }


def _widths(**sizes: int) -> dict[str, Values]:
    return {name: {"width": width} for name, width in sizes.items()}


def _depths(**sizes: tuple[int, int, int]) -> dict[str, Values]:
    names = ("num_layers", "num_heads", "width")
    return {name: dict(zip(names, shape, strict=True)) for name, shape in sizes.items()}


def _channels(first: int, second: int, hidden: int) -> Values:
    return {"first": first, "second": second, "hidden": hidden}


def _stages(*num_blocks: int, width: int = 64, is_deep: bool = False) -> Values:
    return {"num_blocks": num_blocks, "width": width, "is_deep": is_deep}


_CONVOLUTIONS = {"has_convolutions": True}
_BLOCKS = {"layers": "model.blocks"}
_CHILDREN = {"layers": "model.children()"}
_CAUSAL = {"is_causal": True, "has_bias": False}
KINDS: dict[str, _Kind] = {
    "linear": _Kind(template="linear", sizes={"standard": {}}),
    "mlp": _Kind(template="mlp", sizes=_widths(medium=256, small=64, large=1024)),
    "tabular_mlp": _Kind(template="tabular_mlp", sizes=_widths(small=64, medium=256, large=1024)),
    "cnn": _Kind(
        template="cnn",
        sizes={
            "small": _channels(16, 32, 128),
            "medium": _channels(32, 64, 256),
            "large": _channels(64, 128, 512),
        },
        values=_cnn,
        about=_CONVOLUTIONS,
    ),
    "resnet": _Kind(
        template="resnet",
        sizes={
            "slim": _stages(1, 1, 1, width=16),
            "18": _stages(2, 2, 2, 2),
            "34": _stages(3, 4, 6, 3),
            "50": _stages(3, 4, 6, 3, is_deep=True),
        },
        values=_resnet,
        about=_CONVOLUTIONS | _BLOCKS | {"has_batch_norm": True},
    ),
    "gpt": _Kind(
        template="gpt",
        sizes=_depths(small=(2, 4, 128), medium=(6, 6, 384), **{"124m": (12, 12, 768)}),
        flags=_CAUSAL,
        about=_BLOCKS,
    ),
    "gpt_moe": _Kind(
        template="gpt",
        sizes=_depths(small=(2, 4, 128), medium=(6, 6, 384)),
        flags=_CAUSAL | {"is_mixture": True},
        about=_BLOCKS | {"is_mixture": True},
    ),
    "vit": _Kind(
        template="vit",
        sizes=_depths(tiny=(4, 4, 64), small=(6, 4, 192), base=(12, 12, 768)),
        values=_vit,
        about=_CONVOLUTIONS | _BLOCKS,
    ),
    "bert": _Kind(
        template="bert",
        sizes=_depths(small=(2, 4, 128), medium=(4, 8, 256), base=(12, 12, 768)),
        flags={"is_masked": True, "has_dropout": True},
        about=_BLOCKS,
    ),
    "bag_of_words": _Kind(template="bag_of_words", sizes=_widths(small=64, large=256), about=_CHILDREN),
    "gru": _Kind(template="gru", sizes=_widths(small=64, large=256), about=_CHILDREN),
}
