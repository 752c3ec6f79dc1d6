"""Image networks of timm (Wightman 2019), from scratch or from a pretrained model in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainers.data import IMAGE_CLASSIFICATION, DataSpec
from trainers.models.networks import pretrained
from trainers.registry import ModelOptions, register_model

NAME = "timm_image"
DEFAULT_SIZE = "resnet18"
# Networks for photographs halve the sides five times and should end with two pixels per side.
MIN_SIDE = 64
STRIDE = 32


class ResizeInput(nn.Module):
    """A network whose input images are resized to a size it supports.

    Args:
        size: (height, width) to resize to; None: no resizing.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int] | None) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, classes) scores."""
        if self.size is not None:
            is_smaller = self.size[0] < images.shape[-2] or self.size[1] < images.shape[-1]
            images = functional.interpolate(images, self.size, mode="bilinear", antialias=is_smaller)
        scores: Tensor = self.network(images)
        return scores


@register_model(
    NAME,
    label="timm network",
    description="A network of the package timm, from scratch or pretrained from a folder on this machine. "
    "Small images are enlarged to 64 pixels per side, which these networks need.",
    tasks=(IMAGE_CLASSIFICATION,),
    family="pretrained",
    sizes={
        "resnet18": "11 million parameters, the classic",
        "mobilenetv3_small_050": "0.6 million, made for phones",
        "efficientnet_b0": "4 million, accurate for its computing time",
        "convnext_atto": "3.4 million, a convolutional network of 2022",
        "vit_tiny_patch16_224": "5.5 million, a transformer over squares of 16 pixels",
        "resnet50": "24 million, for a GPU",
    },
    requires=(pretrained.TIMM, pretrained.TORCHVISION),
)
def build(spec: DataSpec, options: ModelOptions) -> nn.Module:
    """Build a timm network from scratch or from a folder, with an output layer for the data set.

    Raises:
        ValueError: if the folder cannot be used.
    """
    folder = pretrained.model_folder(options.pretrained_path, NAME) if options.pretrained_path else None
    config = {} if folder is None else timm_config(folder)
    architecture = config.get("architecture", options.size or DEFAULT_SIZE)
    timm = pretrained.import_timm(offline=options.offline)
    if not timm.is_model(architecture):
        raise ValueError(f"timm {timm.__version__} has no network called {architecture!r}")

    channels, height, width = spec.input_shape
    arguments: dict[str, Any] = {"in_chans": channels}
    size = (
        (round_up_side(height, STRIDE), round_up_side(width, STRIDE))
        if min(height, width) < MIN_SIDE
        else None
    )
    cfg = {**timm.get_pretrained_cfg(architecture).to_dict(), **config.get("pretrained_cfg", config)}
    if cfg.get("fixed_input_size"):
        step = patch_multiple(timm, architecture)
        side = min(round_up_side(max(height, width), step), int(cfg["input_size"][-1]))
        size = arguments["img_size"] = (side, side)
    network = (
        timm.create_model(architecture, num_classes=spec.num_classes, **arguments)
        if folder is None
        else load(timm, folder, spec.num_classes, arguments)
    )
    model = ResizeInput(network, size)
    pretrained.freeze_unused(model, torch.zeros(2, *spec.input_shape))
    return model


def load(timm: Any, folder: Path, num_classes: int, arguments: dict[str, Any]) -> nn.Module:
    """Return the folder's network; its output layer is replaced if the number of classes differs.

    The network is first loaded with its original classes, so that timm checks that no weight is missing.

    Raises:
        ValueError: if the weights do not match the network.
    """
    try:
        network: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, **arguments)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"{NAME} cannot use the model in {folder}. Check that config.json and the weights belong to the "
            f"same model ({pretrained.shorten_error(error)})"
        ) from error
    if network.num_classes != num_classes:
        network.reset_classifier(num_classes)
    loaded: nn.Module = network
    return loaded


def timm_config(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json.

    Raises:
        ValueError: if it is not a timm model.
    """
    config = pretrained.read_config(folder)
    if "architecture" not in config:
        hint = f" ({config['model_type']}, a model of transformers)" if "model_type" in config else ""
        raise ValueError(f"{folder} is not a model in timm's format: config.json has no architecture{hint}")
    if not (folder / "model.safetensors").is_file():
        raise ValueError(
            f"{folder} has its weights in several files, but timm reads only one, model.safetensors"
        )
    return config


def round_up_side(side: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `side` and `MIN_SIDE`."""
    return -(-max(side, MIN_SIDE) // multiple) * multiple


def patch_multiple(timm: Any, architecture: str) -> int:
    """Return the number that sides must be a multiple of, for networks that split images into patches."""
    with torch.device("meta"):
        patch_embed = getattr(timm.create_model(architecture), "patch_embed", None)
    patch = int(getattr(patch_embed, "patch_size", (STRIDE,))[0])
    return STRIDE if STRIDE % patch == 0 else patch
