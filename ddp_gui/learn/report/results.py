"""Results of a run for reports without lessons: confusion matrix, outputs of the model and events."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from PIL import Image

from ddp_gui.learn.report import markup
from ddp_gui.learn.report.markup import Html, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured

# Maximum number of runs whose results fit into a report.
MAX_RUNS = 8
MAX_EVENTS = 60
MAX_ITEMS = 12
MAX_PIXEL_BYTES = 64 * 64 * 3
MAX_TEXT = 2_000
# Shades of the cells of a confusion matrix, by the share of their true class.
NUM_SHADES = 5
# Decision regions: the colours of report.css, of the classes and points of at most seven classes.
COLORS = ("0072b2", "d55e00", "009e73", "cc79a7", "e69f00", "56b4e9", "333333")
SURFACE_OPACITY = 0.5
MAX_POINTS = 1_000

Item = Mapping[str, Any]


def draw_results(run: Measured) -> Html:
    """Return the results of a run as HTML, without parts that the run did not write."""
    return joined([_confusion(run), _outputs(run), _events(run)])


def _confusion(run: Measured) -> Html | None:
    last = run.series.evaluations.last
    counts = last.get("confusion")
    if not counts:
        return None
    names = run.series.plan.get("class_names") or []
    names = [names[index] if index < len(names) else str(index) for index in range(len(counts))]
    rows = [
        [
            tag("th", name_of(name), scope="row"),
            [tag("td", markup.count(value), data_shade=_shade(value, sum(row))) for value in row],
        ]
        for name, row in zip(names, counts, strict=True)
    ]
    caption = f"At step {last['step']:,}. Rows are true classes, columns are predicted classes."
    title = "Confusion matrix"
    table = markup.table([None, *map(name_of, names)], rows, label=title, class_="confusion")
    return joined([tag("h4", title), tag("p", caption, class_="soft"), table])


def _shade(value: float, total: float) -> int | None:
    return (round(NUM_SHADES * value / total) or None) if 0 < value <= total else None


def _outputs(run: Measured) -> Html | None:
    """Return the latest outputs of the model that the run wrote."""
    event = run.series.latest.get("sample", {})
    draw = _OUTPUTS.get(str(event.get("type")))
    if draw is None:
        return None
    try:
        drawn = draw(event["content"])
    except (AttributeError, LookupError, TypeError, ValueError):
        return None  # a damaged file can contain any type
    return joined([tag("h4", f"Outputs of the model at step {event['step']:,}"), drawn])


def _text(content: Any) -> Html:
    return tag("pre", str(content)[:MAX_TEXT])


def _texts(content: Any) -> Html:
    items = [
        tag("li", tag("strong", _describe_prediction(item)), " ", name_of(item["text"]))
        for item in content[:MAX_ITEMS]
    ]
    return tag("ul", items)


def _images(content: Any) -> Html:
    figures = [
        tag(
            "figure",
            tag("img", src=_png(item), alt="", width=64),
            tag("figcaption", _describe_prediction(item)),
        )
        for item in content[:MAX_ITEMS]
    ]
    return tag("div", figures, class_="outputs")


def _rows(content: Any) -> Html:
    rows = [
        [
            [tag("td", name_of(_short(value))) for value in item["inputs"]],
            tag("td", _describe_prediction(item)),
        ]
        for item in content["rows"][:MAX_ITEMS]
    ]
    heads = list(map(name_of, [*content["columns"], "answer"]))
    return markup.table(heads, rows, label="Rows with the answers of the model")


def _surface(content: Any) -> Html:
    """Return the decision regions, paler where the model is less certain, with validation points."""
    size = int(content["size"])
    read = partial(base64.b64decode, validate=True)
    predictions, points = read(content["predictions"]), read(content["points"])
    pixels = bytes(
        round(255 + (part - 255) * SURFACE_OPACITY * confidence / 255)
        for prediction, confidence in zip(predictions, read(content["confidence"]), strict=True)
        for part in bytes.fromhex(COLORS[prediction])
    )
    image = {"height": size, "width": size, "channels": 3, "pixels": base64.b64encode(pixels)}
    circles = [
        tag("circle", cx=x, cy=255 - y, r=3, fill=f"#{COLORS[label]}", stroke="#fff")
        for x, y, label in zip(*[iter(points[: 3 * MAX_POINTS])] * 3, strict=True)
    ]
    names = content["feature_names"]
    (left, right), (bottom, top) = content["x_range"], content["y_range"]
    caption = f"{names[0]} from left {_short(left)} to right {_short(right)}, "
    caption += f"{names[1]} from bottom {_short(bottom)} to top {_short(top)}. Points: validation samples."
    dot = partial(tag, "circle", cx=6, cy=6, r=5)
    legend = [
        tag("li", tag("svg", dot(fill=f"#{color}"), class_="key", aria_hidden="true"), " ", name_of(name))
        for color, name in zip(COLORS, content["class_names"], strict=False)
    ]
    regions = tag("image", href=_png(image), width=255, height=255)
    drawn = tag("svg", regions, circles, viewBox="0 0 255 255", width=320, role="img", aria_label=caption)
    return tag("figure", drawn, tag("figcaption", caption), tag("ul", legend, class_="legend"))


_OUTPUTS: Mapping[str, Callable[[Any], Html]] = {
    "text": _text, "texts": _texts, "images": _images, "rows": _rows, "surface": _surface
}  # fmt: skip


def _describe_prediction(item: Item) -> str:
    """Return the label and the prediction of a sample as text."""
    label, prediction = _short(item.get("label", item.get("target"))), _short(item["prediction"])
    if "target" in item:
        return f"{label}, predicted {prediction}"
    return f"{label} ✓" if label == prediction else f"{label}, predicted {prediction} ✗"


def _short(value: Any) -> str:
    return markup.number(value) if isinstance(value, float) else str(value)


def _png(image: Item) -> str:
    """Return the pixels of a sample as the data URL of a PNG file.

    Raises:
        ValueError: if they are not an image of this size.
    """
    height, width, channels = image["height"], image["width"], image["channels"]
    pixels = base64.b64decode(image["pixels"], validate=True)
    if channels not in (1, 3) or not 0 < len(pixels) == height * width * channels <= MAX_PIXEL_BYTES:
        raise ValueError("the sample is not an image")
    file = io.BytesIO()
    Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _events(run: Measured) -> Html | None:
    """Return the important events of a run, without periodic checkpoints."""
    described = [
        (mark, text[:MAX_TEXT]) for mark in run.series.marks if (text := _describe_mark(mark)) is not None
    ]
    rows = [
        [tag("td", cell) for cell in (markup.duration(mark["active_s"]), markup.count(mark["step"]), text)]
        for mark, text in described[-MAX_EVENTS:]
    ]
    omitted = len(described) - len(rows)
    return joined(
        [
            tag("h4", "Events"),
            tag("p", f"{omitted:,} earlier events are omitted.", class_="soft") if omitted else None,
            markup.table(("After", "Step", "Event"), rows, class_="events"),
        ]
    )


def _describe_mark(mark: Item) -> str | None:
    kind, reason = mark["kind"], mark.get("reason")
    if kind == "state":
        return f"{mark['state']}: {reason}" if reason else str(mark["state"])
    if kind == "checkpoint" and reason != "schedule":
        return f"checkpoint ({reason}), {markup.size(mark.get('size_bytes'))}"
    if kind == "command":
        return f"{mark['name']}: {mark.get('message') or 'done'}"
    if kind in ("warning", "error", "finding"):
        return f"{kind}: {mark['message']}"
    return f"{mark['num_steps']:,} steps recorded" if kind == "recording" else None
