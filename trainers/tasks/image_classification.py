"""Image classification: accuracy, and a sample of validation images with predictions."""

from __future__ import annotations

from typing import Any

import torch

from trainers.data.dataset import IMAGE_CLASSIFICATION, DataSpec, Split
from trainers.registry import register_task
from trainers.report.samples import Scores, as_base64, classify, spread, stored, thumbnails
from trainers.report.task import Classification

NUM_IMAGES = 12


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
    pictures = thumbnails(images.cpu())
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
