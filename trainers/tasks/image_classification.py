"""Image classification: accuracy, and a sample of validation images with predictions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import IMAGE_CLASSIFICATION, DataSpec, Split
from trainers.registry import register_task
from trainers.report.metrics import Classification
from trainers.report.samples import Scores, as_base64, classify, spread, stored

NUM_IMAGES = 12
MAX_IMAGE_BYTES = 4096  # 64 × 64 in grey, 36 × 36 in colour


@register_task(IMAGE_CLASSIFICATION)
class ImageClassification(Classification):
    """Maps (batch, channels, height, width) images to (batch, classes) scores."""

    def sample(
        self,
        scores: Scores,
        spec: DataSpec,
        validation: Split,
        *,
        device: torch.device,
        seed: int,
        time_limit_s: float | None,
    ) -> tuple[str, Any]:
        del seed, time_limit_s
        return "images", _predict_images(scores, spec, validation, device)


def _predict_images(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> list[dict[str, Any]]:
    """Return height, width, channels, pixels (base64 of rows of pixels), label, prediction, probability."""
    images, labels = stored(validation, spread(NUM_IMAGES, len(validation)))
    answers = classify(scores, validation.prepare(images.to(device)), labels, spec)
    pictures = _small(images.cpu())
    channels, height, width = pictures.shape[1:]
    return [
        {
            "height": height,
            "width": width,
            "channels": channels,
            "pixels": as_base64(picture.permute(1, 2, 0)),
            **answer,
        }
        for picture, answer in zip(pictures, answers, strict=True)
    ]


def _small(images: Tensor) -> Tensor:
    """Return thumbnails of (samples, channels, height, width) images: at most 4 kB each, values 0 to 255."""
    pictures = images.float()
    if pictures.shape[1] != 3:
        pictures = pictures.mean(dim=1, keepdim=True)
    size = pictures[0].numel()
    if size > MAX_IMAGE_BYTES:
        pictures = functional.avg_pool2d(
            pictures, math.ceil(math.sqrt(size / MAX_IMAGE_BYTES)), ceil_mode=True
        )
    # Normalise to full brightness, because data sets have different ranges (digits: 0 to 16).
    return pictures * (255.0 / max(1.0, float(pictures.max())))
