"""What the model says now, in a form a page can draw: text, pictures, borders, curves or rows of a table.

Nothing here depends on the rank and every draw has its own generator, so that all ranks of a sharded
model can take a sample together, and training's random state is not touched.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_CLASSIFICATION,
    TABULAR_REGRESSION,
    TEXT_CLASSIFICATION,
    DataSpec,
    Split,
)
from trainers.data.tables import TableSplit

Scores = Callable[[Tensor], Tensor]

NUM_IMAGES = 12
MAX_IMAGE_BYTES = 4096  # 64 × 64 in grey, 36 × 36 in colour
NUM_CHARACTERS = 240
NUM_TOKENS = 80  # where a token is a piece of a word
TEMPERATURE = 0.8
PROMPT = "\n"
NUM_TEXTS = 6
MAX_TEXT_CHARACTERS = 160
GRID = 48  # cells a side of the picture of a plane
MAX_SURFACE_CLASSES = 7  # as many colours as the page has
NUM_CURVE_POINTS = 100
NUM_POINTS = 200
NUM_ROWS = 8
NUM_ROW_COLUMNS = 4
MARGIN = 0.08  # a picture reaches this share of the data's range beyond the data


def take(
    scores: Scores,
    spec: DataSpec,
    validation: Split,
    *,
    device: torch.device,
    seed: int,
    time_limit_s: float | None = None,
) -> tuple[str, Any] | None:
    """Return the sample's type and content for a `sample` event, or None where there is none.

    Args:
        scores: maps prepared inputs on `device` to the model's output, without training it.
        seed: of what is drawn when text is written.
        time_limit_s: text that is not written by then is cut off; None where ranks write together, because
            all of them must do the same.

    Types: `text` (a string), `images`, `texts`, `surface`, `curve` and `rows`; what each holds is said
    where it is made.
    """
    if spec.task == LANGUAGE_MODELLING:
        return "text", _write_text(scores, spec, validation, device, seed, time_limit_s)
    if spec.task == IMAGE_CLASSIFICATION:
        return "images", _predict_images(scores, spec, validation, device)
    if spec.task == TEXT_CLASSIFICATION:
        return "texts", _predict_texts(scores, spec, validation, device)
    if spec.task == TABULAR_CLASSIFICATION:
        if spec.input_shape == (2,) and spec.num_classes <= MAX_SURFACE_CLASSES:
            return "surface", _surface(scores, spec, validation, device)
        return "rows", _classified_rows(scores, spec, validation, device)
    if spec.task == TABULAR_REGRESSION:
        if spec.input_shape == (1,):
            return "curve", _curve(scores, spec, validation, device)
        return "rows", _predicted_rows(scores, spec, validation, device)
    return None


def _write_text(
    scores: Scores,
    spec: DataSpec,
    validation: Split,
    device: torch.device,
    seed: int,
    time_limit_s: float | None,
) -> str:
    """Return text the model writes by itself, token by token.

    The model always sees a row of the same length, with what is not written yet behind the place that is
    read: a causal model cannot look there, and one shape is compiled once.
    """
    ends_at = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    generator = torch.Generator().manual_seed(seed)
    num_new = NUM_CHARACTERS if spec.class_names else NUM_TOKENS
    length = min(spec.input_shape[0], num_new)
    if PROMPT in spec.class_names:
        written, start = [spec.class_names.index(PROMPT)], 1
    else:
        written, start = _stored(validation, _spread(1, len(validation)))[0].flatten()[:1].tolist(), 0
    while len(written) < num_new + start and time.monotonic() < ends_at:
        seen = written[-length:]
        inputs = torch.tensor([seen + [0] * (length - len(seen))], device=device)
        following = scores(validation.prepare(inputs))[0, len(seen) - 1].float().cpu() / TEMPERATURE
        written.append(int(torch.multinomial(following.softmax(-1), 1, generator=generator)))
    return _text_of(written[start:], spec)


def _predict_images(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> list[dict[str, Any]]:
    """Return height, width, channels, pixels (base64 of rows of pixels), label, prediction, probability."""
    images, labels = _stored(validation, _spread(NUM_IMAGES, len(validation)))
    answers = _classify(scores, validation.prepare(images.to(device)), labels, spec)
    pictures = _small(images.cpu())
    channels, height, width = pictures.shape[1:]
    return [
        {
            "height": height,
            "width": width,
            "channels": channels,
            "pixels": _base64(picture.permute(1, 2, 0)),
            **answer,
        }
        for picture, answer in zip(pictures, answers, strict=True)
    ]


def _predict_texts(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> list[dict[str, Any]]:
    """Return text (cut), label, prediction and probability of each."""
    indices = _spread(NUM_TEXTS, len(validation))
    tokens, labels = _stored(validation, indices)
    answers = _classify(scores, validation.prepare(tokens.to(device)), labels, spec)
    kept: Sequence[str] | None = getattr(validation, "texts", None)
    texts = (
        [kept[index] for index in indices.tolist()]
        if kept is not None
        else [_text_of([token for token in row if token != spec.padding], spec) for row in tokens.tolist()]
    )
    return [{"text": _cut(text), **answer} for text, answer in zip(texts, answers, strict=True)]


def _surface(scores: Scores, spec: DataSpec, validation: Split, device: torch.device) -> dict[str, Any]:
    """Return what the model says of every place of a plane, and some validation points.

    `predictions` and `confidence` are base64 of size × size bytes, the uppermost row first; confidence
    255 is a probability of 1. `points` is base64 of three bytes a point: x and y from 0 at the start of
    their range to 255 at its end, and the class. The ranges are in the columns' own units.
    """
    inputs, labels = _stored(validation, _spread(NUM_POINTS, len(validation)))
    low, high = _range(inputs)
    across = torch.linspace(0, 1, GRID)
    places = torch.cartesian_prod(across.flip(0), across).flip(1)  # (x, y), row by row from the top
    probabilities = scores(validation.prepare((low + places * (high - low)).to(device))).float().softmax(-1)
    confidence, predictions = probabilities.max(-1)
    relative = ((inputs.cpu() - low) / (high - low) * 255).round().clamp(0, 255)
    ranges = torch.stack([_in_units(low, validation), _in_units(high, validation)], dim=1)
    return {
        "size": GRID,
        "predictions": _base64(predictions),
        "confidence": _base64((confidence.nan_to_num(0.0) * 255).round()),
        "points": _base64(torch.cat([relative, labels.cpu().unsqueeze(1)], dim=1)),
        "x_range": [_short(value) for value in ranges[0].tolist()],
        "y_range": [_short(value) for value in ranges[1].tolist()],
        "feature_names": list(spec.feature_names),
        "class_names": [_cut(name, 40) for name in spec.class_names],
    }


def _curve(scores: Scores, spec: DataSpec, validation: Split, device: torch.device) -> dict[str, Any]:
    """Return x and the predicted y over the range of x, and some validation points, in their own units."""
    inputs, targets = _stored(validation, _spread(NUM_POINTS, len(validation)))
    low, high = _range(inputs)
    x = low + torch.linspace(0, 1, NUM_CURVE_POINTS).unsqueeze(1) * (high - low)
    predicted = scores(validation.prepare(x.to(device))).float().flatten().cpu()
    return {
        "x": _shorts(_in_units(x, validation)),
        "y": _shorts(_in_target_units(predicted, spec)),
        "point_x": _shorts(_in_units(inputs.cpu(), validation)),
        "point_y": _shorts(_in_target_units(targets.cpu(), spec)),
        "feature_names": list(spec.feature_names),
    }


def _classified_rows(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> dict[str, Any]:
    """Return some rows: `inputs` of the first columns, label, prediction, probability."""
    inputs, labels = _stored(validation, _spread(NUM_ROWS, len(validation)))
    answers = _classify(scores, validation.prepare(inputs.to(device)), labels, spec)
    return _rows(inputs, answers, spec, validation)


def _predicted_rows(
    scores: Scores, spec: DataSpec, validation: Split, device: torch.device
) -> dict[str, Any]:
    """Return some rows: `inputs` of the first columns, target, prediction and error in the target's units."""
    inputs, targets = _stored(validation, _spread(NUM_ROWS, len(validation)))
    predicted = scores(validation.prepare(inputs.to(device))).float().flatten().cpu()
    pairs = torch.stack(
        [_in_target_units(targets.cpu(), spec), _in_target_units(predicted, spec)], dim=1
    ).tolist()
    answers = [
        {"target": _short(target), "prediction": _short(prediction), "error": _short(prediction - target)}
        for target, prediction in pairs
    ]
    return _rows(inputs, answers, spec, validation)


def _rows(inputs: Tensor, answers: list[dict[str, Any]], spec: DataSpec, validation: Split) -> dict[str, Any]:
    names = spec.feature_names[:NUM_ROW_COLUMNS] if isinstance(validation, TableSplit) else ()
    shown = _in_units(inputs.cpu(), validation)[:, : len(names)].tolist()
    return {
        "columns": [_cut(name, 40) for name in names],
        "rows": [
            {"inputs": [_short(value) for value in row], **answer}
            for row, answer in zip(shown, answers, strict=True)
        ],
    }


def _classify(scores: Scores, inputs: Tensor, labels: Tensor, spec: DataSpec) -> list[dict[str, Any]]:
    """Return label, prediction and probability of each sample."""
    probabilities, predictions = scores(inputs).float().softmax(-1).max(-1)
    names = spec.class_names
    return [
        {
            "label": _cut(names[label], 80),
            "prediction": _cut(names[prediction], 80),
            "probability": round(probability, 3),
        }
        for label, prediction, probability in zip(
            labels.tolist(), predictions.tolist(), probabilities.tolist(), strict=True
        )
    ]


def _spread(num_wanted: int, num_samples: int) -> Tensor:
    """Return numbers of samples, evenly spread: some validation splits are sorted by class."""
    num = min(num_wanted, num_samples)
    return torch.arange(num) * num_samples // max(1, num)


def _stored(validation: Split, indices: Tensor) -> tuple[Tensor, Tensor]:
    return validation.batch(indices.to(validation.device))


def _small(images: Tensor) -> Tensor:
    """Make pictures for a page of (samples, channels, height, width) bytes: small, bright, grey or colour."""
    pictures = images.float()
    if pictures.shape[1] != 3:
        pictures = pictures.mean(dim=1, keepdim=True)
    size = pictures[0].numel()
    if size > MAX_IMAGE_BYTES:
        pictures = functional.avg_pool2d(
            pictures, math.ceil(math.sqrt(size / MAX_IMAGE_BYTES)), ceil_mode=True
        )
    # Bright to the eye whatever the data's own scale is (the digits count to 16).
    return pictures * (255.0 / max(1.0, float(pictures.max())))


def _range(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest of each column, with a margin, on the CPU."""
    low, high = inputs.min(dim=0).values.cpu(), inputs.max(dim=0).values.cpu()
    margin = (high - low).clamp_min(1e-6) * MARGIN
    return low - margin, high + margin


def _in_units(inputs: Tensor, validation: Split) -> Tensor:
    """Bring inputs on the CPU back to the columns' own units, where the split knows them."""
    if isinstance(validation, TableSplit):
        return inputs * validation.feature_std + validation.feature_mean
    return inputs


def _in_target_units(targets: Tensor, spec: DataSpec) -> Tensor:
    return targets * spec.target_std + spec.target_mean


def _text_of(tokens: Sequence[int], spec: DataSpec) -> str:
    if spec.decode is not None:
        return spec.decode(tokens)
    return "".join(spec.class_names[token] for token in tokens)


def _cut(text: str, length: int = MAX_TEXT_CHARACTERS) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _short(value: float) -> float:
    """Keep four digits: more nobody sees."""
    return float(f"{value:.4g}")


def _shorts(values: Tensor) -> list[float]:
    return [_short(value) for value in values.flatten().tolist()]


def _base64(values: Tensor) -> str:
    return base64.b64encode(bytes(values.flatten().to(torch.uint8).tolist())).decode("ascii")
