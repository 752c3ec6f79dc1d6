"""The model card of an exported model: MODEL_CARD.md, and the loss curve as an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp_gui.events.run_view import RunView
from ddp_gui.http.shell import visible
from ddp_gui.runs import listing
from trainers.contract import start_from
from trainers.contract.rundir import file_stem

Z_95 = 1.96
# Metrics that are a share of the samples; number of bootstrap draws for other metrics' intervals.
SHARES = ("accuracy", "top5_accuracy")
NUM_BOOTSTRAP = 1_000
MAX_COUNT = 2**53  # largest integer up to which floats are exact
WIDTH, HEIGHT, EDGE = 720, 360, 48
MAX_POINTS = 500
MAX_NAMES = 60
TASKS = {
    "image_classification": "image classification",
    "text_classification": "text classification",
    "language_modelling": "language modelling (next token)",
    "tabular_classification": "classification of table rows",
    "tabular_regression": "prediction of a number from table rows",
}
PURPOSES = {
    "weights.safetensors": "all weights by name, readable by any program",
    "model.pt2": "the network with its weights for torch.export.load; needs no other source code",
    "model.onnx": "the same for onnxruntime and other ONNX programs",
    "model.json": "input shape, normalisation, tokenizer, class names; used by predict.py",
    "predict.py": "runs the model on a file, with torch or with onnxruntime alone",
    "try.html": "a page with the model that runs in a browser, offline",
    "curve.svg": "the loss during training",
}


CARD = """\
# {name}

A model for {task}: `{model}`, size `{size}`, {num_parameters:,} parameters, trained on
`{dataset}`, checkpoint of step {step:,}.

{lora}{start}## Use

```sh
python predict.py {example}
```

`predict.py` needs only torch or onnxruntime. The same in Python:

```python
{snippet}
```

Input: {kind}, shape {shape} (any batch size). Inputs must be prepared as `model.json` describes; another
normalisation gives worse predictions without an error.

{classes}## Data

{description} Source and licence: {source}. {num_train:,} {unit} for training, {num_validation:,} for
validation.

## Results

{results}
![Loss during training](curve.svg)

## Limits

The model was validated only on data like the training data. For other inputs, predictions can be wrong even
with a high probability. If the validation split selected this checkpoint as the best one, its metrics are
slightly too good. The model was not tested for bias or safety.

## Configuration

| field | value |
|---|---|
{configuration}

## Files

| file | content | bytes | SHA-256 |
|---|---|---|---|
{files}

{checks}Versions: {versions}.
"""


def model_card(view: RunView, facts: Mapping[str, Any]) -> str:
    """Return the text of MODEL_CARD.md.

    Args:
        facts: the facts that `trainers.predict.take_home` printed.
    """
    metadata, config, step = facts["about"], view.config, facts["step"]
    data, files = metadata["data"], facts["files"]
    return CARD.format(
        name=visible(config.name or view.run.run_id),
        task=TASKS.get(metadata["task"], metadata["task"]),
        model=config.model,
        size=metadata["model"]["size"],
        num_parameters=metadata["model"]["num_parameters"],
        dataset=config.dataset,
        step=step,
        lora=_lora(view, metadata["model"].get("lora_rank", 0)),
        start=_start(view),
        example=facts["example"],
        snippet=facts["snippet"].rstrip(),
        kind=metadata["input"]["kind"],
        shape=metadata["input"]["shape"],
        classes=_classes(metadata),
        description=visible(data["description"]),
        source=visible(data["source"]),
        num_train=data["num_train"],
        num_validation=data["num_validation"],
        unit=data["sample_unit"],
        results=_results(view, step, data["num_validation"]),
        configuration="\n".join(
            f"| `{name}` | {_cell(value)} |"
            for name, value in sorted(config.to_json().items())
            # Omit fields of scripts, which have no effect on a model, and fields without a value.
            if value not in (None, "") and not name.startswith("script")
        ),
        files="\n".join(_row(name, file) for name, file in files.items()),
        checks=_checks(facts),
        versions=", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
    )


def _lora(view: RunView, rank: int) -> str:
    if not rank:
        return ""
    with view.lock:
        trained, total = (view.series.plan.get(name) for name in ("num_trained", "num_parameters"))
    trained_text = f": {trained:,} of {total:,} parameters were trained" if trained and total else ""
    return f"Fine-tuned with LoRA of rank {rank}{trained_text}. The adapters are merged into the weights.\n\n"


def _start(view: RunView) -> str:
    with view.lock:
        text = listing.start_text(view.config, view.series.plan.get("start"))
    if not text:
        return ""
    origin = start_from.read_origin(view.run)
    origin_text = (
        ""
        if origin is None
        else f" (trained on `{origin.dataset}`; SHA-256 of the weights: `{origin.sha256}`)"
    )
    return f"Lineage: {visible(text)}{origin_text}.\n\n"


def _row(name: str, file: Mapping[str, Any]) -> str:
    purpose = PURPOSES.get(name, "an input for predict.py" if name.startswith("example.") else "")
    return f"| `{name}` | {purpose} | {file['size_bytes']:,} | `{file['sha256']}` |"


def _classes(metadata: Mapping[str, Any]) -> str:
    names = metadata["output"].get("class_names", [])
    if not names:
        return ""
    names_text = ", ".join(visible(name) for name in names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return f"Classes, in the order of the outputs: {names_text}{more}.\n\n"


def _results(view: RunView, step: int, num_validation: int) -> str:
    """Return the metrics of the evaluation at this step, with 95% confidence intervals for classification."""
    with view.lock:
        evaluations = [event for event in view.series.evaluations.all if event["step"] == step]
    if not evaluations:
        return f"The model was not evaluated at step {step:,}.\n"
    lines = [f"On the validation split of {num_validation:,} samples, at step {step:,}:", ""]
    lines += ["| metric | value |", "|---|---|", f"| loss | {evaluations[-1]['loss']:.4g} |"]
    for name, value in evaluations[-1]["metrics"].items():
        if isinstance(value, int | float) and math.isfinite(value):
            bounds = None
            if name in SHARES and num_validation:
                bounds = wilson(value, num_validation)
            elif name == "macro_f1" and (confusion := evaluations[-1].get("confusion")):
                bounds = f1_interval(np.asarray(confusion))
            interval = f" (95% interval {bounds[0]:.4f} to {bounds[1]:.4f})" if bounds else ""
            lines.append(f"| {name} | {value:.4g}{interval} |")
    return "\n".join([*lines, ""])


def wilson(share: float, num_samples: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a share (Wilson 1927)."""
    square = Z_95**2 / num_samples
    middle = (share + square / 2) / (1 + square)
    half = Z_95 * math.sqrt(share * (1 - share) / num_samples + square / (4 * num_samples)) / (1 + square)
    return middle - half, middle + half


def f1_interval(confusion: NDArray[Any]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of macro F1, by bootstrap from a confusion matrix.

    None if the matrix, which may come from an imported run, does not contain counts.
    """
    total, num_classes = confusion.sum(dtype=float), len(confusion)
    if confusion.min() < 0 or not 1 <= total <= MAX_COUNT:
        return None
    shares = confusion.ravel() / total
    samples = np.random.default_rng(0).multinomial(int(total), shares, size=NUM_BOOTSTRAP)
    samples = samples.reshape(NUM_BOOTSTRAP, num_classes, num_classes)
    occurs = samples.sum(1) + samples.sum(2)
    scores = 2 * samples.diagonal(axis1=1, axis2=2) / np.maximum(occurs, 1)
    low, high = np.quantile(scores.sum(1) / (occurs > 0).sum(1), (0.025, 0.975))
    return float(low), float(high)


def _checks(facts: Mapping[str, Any]) -> str:
    lines = [
        f"Largest difference between `{name}` and the network in torch, on random inputs: {value:.2g}."
        for name, value in facts["differences"].items()
    ]
    if facts["onnx_problem"] is not None:
        lines.append(f"`model.onnx` is missing: {facts['onnx_problem']} on the machine that made this zip.")
    return "".join(f"{line}\n\n" for line in lines)


def _cell(value: Any) -> str:
    return "" if value is None else visible(str(value)).replace("|", "\\|").replace("\n", " ")[:200]


def curve(view: RunView) -> str:
    """Return the training and validation loss over the steps as an SVG picture."""
    with view.lock:
        table = view.series.steps
        steps, losses = table.x("step").tolist(), table.column("loss").tolist()
        evaluated = [(event["step"], event["loss"]) for event in view.series.evaluations.all]
    stride = max(1, len(steps) // MAX_POINTS)
    training = _finite(list(zip(steps, losses, strict=True))[::stride])
    validation = _finite(evaluated)
    points_of_both = [*training, *validation]
    if not points_of_both:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>\n'
    last = max(x for x, _ in points_of_both) or 1
    low, high = min(y for _, y in points_of_both), max(y for _, y in points_of_both)

    def points(values: Sequence[tuple[float, float]]) -> str:
        width, height = WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE
        positions = [
            (EDGE + width * x / last, EDGE + height * (high - y) / ((high - low) or 1)) for x, y in values
        ]
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)

    def line(values: Sequence[tuple[float, float]], colour: str) -> str:
        return f'<polyline points="{points(values)}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def text(x: float, y: float, content: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{content}</text>'

    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<path d="M{EDGE} {EDGE}V{HEIGHT - EDGE}H{WIDTH - EDGE}" fill="none" stroke="#999"/>',
        line(training, "#0072b2"),
        line(validation, "#e69f00"),
        text(EDGE - 6, EDGE + 4, f"{high:.3g}", "end"),
        text(EDGE - 6, HEIGHT - EDGE, f"{low:.3g}", "end"),
        text(EDGE, HEIGHT - EDGE + 20, "0"),
        text(WIDTH - EDGE, HEIGHT - EDGE + 20, f"step {last:,}", "end"),
        text(EDGE + 12, EDGE - 16, '<tspan fill="#0072b2">training loss</tspan>'),
        text(EDGE + 130, EDGE - 16, '<tspan fill="#9a6a00">validation loss</tspan>'),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _finite(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in pairs if isinstance(y, int | float) and math.isfinite(y)]


def archive_name(run_id: str, step: int) -> str:
    """Return the name of the zip, without its ending; the folder in the zip has the same name."""
    return f"{file_stem(run_id)}-step-{step}-model"
