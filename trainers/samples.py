"""What the model says now: predicted images, or text it writes. Rank 0 only, on the bare network."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import nn

from trainers.data import LANGUAGE_MODELLING, DataSpec, ImageSplit, Split

NUM_IMAGES = 12
NUM_CHARACTERS = 240
TEMPERATURE = 0.8
PROMPT = "\n"


@torch.no_grad()
def take(model: nn.Module, spec: DataSpec, validation: Split, seed: int) -> tuple[str, Any] | None:
    """Return the sample's type and content for a `sample` event, or None where there is none.

    `text` is a string. `images` is a list of height, width, pixels (base64 of grey bytes), label,
    prediction and probability. Training's random state is not touched.
    """
    was_training = model.training
    model.eval()
    try:
        if spec.task == LANGUAGE_MODELLING:
            return "text", _write_text(model, spec, seed)
        if isinstance(validation, ImageSplit):
            return "images", _predict_images(model, spec, validation)
        return None
    finally:
        model.train(was_training)


def _write_text(model: nn.Module, spec: DataSpec, seed: int) -> str:
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    window = spec.input_shape[0]
    tokens = torch.tensor([[spec.class_names.index(PROMPT)]], device=device)
    for _ in range(NUM_CHARACTERS):
        scores = model(tokens[:, -window:])[0, -1].float().cpu() / TEMPERATURE
        chosen = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, chosen.view(1, 1).to(device)], dim=1)
    return "".join(spec.class_names[number] for number in tokens[0, 1:].tolist())


def _predict_images(model: nn.Module, spec: DataSpec, split: ImageSplit) -> list[dict[str, Any]]:
    indices = torch.arange(min(NUM_IMAGES, len(split)), device=split.labels.device)
    inputs, labels = split.batch(indices)
    probabilities, predictions = model(inputs).float().softmax(-1).max(-1)
    pixels = split.images[indices].squeeze(1)
    # Bright to the eye whatever the data's own scale is (the digits count to 16).
    pixels = (pixels.float() * (255.0 / max(1.0, float(pixels.max())))).byte().cpu()
    return [
        {
            "height": pixels.shape[1],
            "width": pixels.shape[2],
            "pixels": base64.b64encode(bytes(image.flatten().tolist())).decode("ascii"),
            "label": spec.class_names[label],
            "prediction": spec.class_names[prediction],
            "probability": round(probability, 3),
        }
        for image, label, prediction, probability in zip(
            pixels, labels.tolist(), predictions.tolist(), probabilities.tolist(), strict=True
        )
    ]
