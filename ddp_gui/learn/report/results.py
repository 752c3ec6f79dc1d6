"""What a run wrote, for reports without lessons: confusion matrix, outputs of the model and events."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from ddp_gui.learn.report import markup
from ddp_gui.learn.report.markup import Html, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured

# The results of more runs would not fit into a report.
MAX_RUNS = 8
MAX_EVENTS = 60
MAX_ITEMS = 12
MAX_PIXEL_BYTES = 64 * 64 * 3
MAX_TEXT = 2_000
# Shades of the cells of a confusion matrix, by the share of their true class.
NUM_SHADES = 5

Item = Mapping[str, Any]


def draw_results(run: Measured) -> Html:
    """Return the results of a run as HTML; parts that it did not write are omitted."""
    return joined([_confusion(run), _outputs(run), _events(run)])


def _confusion(run: Measured) -> Html | None:
    last = run.series.evaluations.last
    counts = last.get("confusion")
    if not counts:
        return None
    names = run.series.plan.get("class_names") or []
    names = [names[place] if place < len(names) else str(place) for place in range(len(counts))]
    rows = [
        tag(
            "tr",
            tag("th", name_of(name), scope="row"),
            [tag("td", markup.count(value), data_shade=_shade(value, sum(row))) for value in row],
        )
        for name, row in zip(names, counts, strict=True)
    ]
    heads = [tag("th", name_of(name), scope="col") for name in names]
    words = f"Of step {last['step']:,}: a row for each true class, a column for each predicted class."
    table = tag("table", tag("thead", tag("tr", tag("td"), heads)), tag("tbody", rows), class_="confusion")
    title = "Confusion matrix"
    return joined([tag("h4", title), tag("p", words, class_="soft"), _scrolling(table, title)])


def _scrolling(table: Html, label: str) -> Html:
    return tag("div", table, class_="scroll", tabindex="0", role="group", aria_label=label)


def _shade(value: float, whole: float) -> int | None:
    return (round(NUM_SHADES * value / whole) or None) if 0 < value <= whole else None


def _outputs(run: Measured) -> Html | None:
    """Return the latest outputs of the model that the run wrote."""
    event = run.series.latest.get("sample", {})
    draw = _OUTPUTS.get(str(event.get("type")))
    if draw is None:
        return None
    try:
        drawn = draw(event["content"])
    except (AttributeError, LookupError, TypeError, ValueError, struct.error):
        return None  # a damaged file can contain any type
    return joined([tag("h4", f"Outputs of the model at step {event['step']:,}"), drawn])


def _text(content: Any) -> Html:
    return tag("pre", str(content)[:MAX_TEXT])


def _texts(content: Any) -> Html:
    items = [
        tag("li", tag("strong", _said(item)), " ", name_of(item["text"])) for item in content[:MAX_ITEMS]
    ]
    return tag("ul", items)


def _images(content: Any) -> Html:
    figures = [
        tag("figure", tag("img", src=_png(item), alt="", width=64), tag("figcaption", _said(item)))
        for item in content[:MAX_ITEMS]
    ]
    return tag("div", figures, class_="outputs")


def _rows(content: Any) -> Html:
    heads = [tag("th", name_of(name), scope="col") for name in [*content["columns"], "answer"]]
    rows = [
        tag("tr", [tag("td", name_of(_short(value))) for value in item["inputs"]], tag("td", _said(item)))
        for item in content["rows"][:MAX_ITEMS]
    ]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
    return _scrolling(table, "Rows with the answers of the model")


_OUTPUTS: Mapping[str, Callable[[Any], Html]] = {
    "text": _text, "texts": _texts, "images": _images, "rows": _rows
}  # fmt: skip


def _said(item: Item) -> str:
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
    stride = width * channels
    # Each line begins with the number of its filter: none.
    lines = b"".join(b"\0" + pixels[begin : begin + stride] for begin in range(0, len(pixels), stride))
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _events(run: Measured) -> Html | None:
    """Return the events that explain the course of a run: not each periodic checkpoint."""
    told = [(mark, words) for mark in run.series.marks if (words := _words_of(mark)) is not None]
    rows = [
        tag(
            "tr",
            tag("td", markup.duration(mark["active_s"])),
            tag("td", markup.count(mark["step"])),
            tag("td", words[:MAX_TEXT]),
        )
        for mark, words in told[-MAX_EVENTS:]
    ]
    heads = [tag("th", words, scope="col") for words in ("After", "Step", "Event")]
    omitted = len(told) - len(rows)
    return joined(
        [
            tag("h4", "Events"),
            tag("p", f"{omitted:,} earlier ones are omitted.", class_="soft") if omitted else None,
            tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), class_="events"),
        ]
    )


def _words_of(mark: Item) -> str | None:
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
