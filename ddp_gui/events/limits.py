"""What the view of a run keeps of an event: the known fields, at limited lengths.

A copied run may hold anything, and a view stays in memory while it is watched: its size must follow from the
run's length and ranks, not from what its events claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from trainers.contract import events
from trainers.contract.events import Event

MAX_RANKS = 4_096
MAX_METRICS = 32
MAX_CLASSES = 50
# As training cuts them.
MAX_CLASS_NAME = 40
MAX_CELL = 40
MAX_NAME = 100
MAX_TEXT = 4_000
MAX_TRACEBACK = 20_000
MAX_ITEMS = 100
# The content of a sample is drawn once and replaced by the next one.
MAX_SAMPLE_ITEMS = 10_000
MAX_SAMPLE_TEXT = 400_000
MAX_HASH = 64
# Of each kind of event that is listed under "What happened".
MAX_MARKS_OF_A_KIND = 500


def kept_of(event: Event, num_ranks: int) -> Event:
    """Return an event as it is kept: with the fields of its kind, each of a limited size.

    Args:
        num_ranks: entries of higher ranks are left out.
    """
    kind = event["kind"]
    # Of a kind that this version does not know only its name is shown.
    names = (*events.COMMON_FIELDS, *events.FIELDS.get(kind, ("step",)))
    kept = {name: event[name] for name in names if name in event}
    if kind == "devices":
        kept["devices"] = _by_rank(event["devices"], (*events.DEVICE_FIELDS, "host"), num_ranks)
    elif kind == "ranks":
        kept["ranks"] = _by_rank(event["ranks"], events.RANK_FIELDS, num_ranks)
    elif kind == "eval":
        kept["metrics"] = _metrics(event["metrics"])
        kept["confusion"] = _small_square(event.get("confusion"))
    elif kind == "sample":
        kept["content"] = _sample(event.get("content"), event.get("type"))
    elif kind == "fingerprints":
        kept["hashes"] = [value[:MAX_HASH] for value in event["hashes"][:num_ranks]]
        kept["distances"] = event["distances"][:num_ranks]
    else:
        traceback = cut(event.get("traceback"), MAX_TRACEBACK)
        kept = cut(kept, MAX_TEXT) | ({"traceback": traceback} if "traceback" in kept else {})
        if kind == "plan":
            kept["class_names"] = cut(event.get("class_names"), MAX_CLASS_NAME)
    return kept


def _metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first metrics, the main one among them, by names that stay different when they are cut."""
    main = events.primary_metric(metrics)
    ordered = metrics if main is None else {main: metrics[main], **metrics}
    return {_cut_name(name): value for name, value in _first(ordered, MAX_METRICS)}


def _cut_name(name: str) -> str:
    """Return a name of at most MAX_NAME characters; a cut one ends in a part of its hash."""
    if len(name) <= MAX_NAME:
        return name
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: MAX_NAME - len(mark) - 1]}…{mark}"


def without_oldest(marks: Sequence[Event]) -> list[Event]:
    """Return the newest of each kind; the kinds that this version does not know count as one."""
    num_left = dict.fromkeys((*events.FIELDS, ""), MAX_MARKS_OF_A_KIND)
    kept = []
    for mark in reversed(marks):
        kind = mark["kind"] if mark["kind"] in events.FIELDS else ""
        num_left[kind] -= 1
        if num_left[kind] >= 0:
            kept.append(mark)
    return kept[::-1]


def cut(value: Any, most_text: int, most_items: int = MAX_ITEMS) -> Any:
    """Return a value with its texts, lists and objects cut to these lengths."""
    if isinstance(value, str):
        return value if len(value) <= most_text else value[: most_text - 1] + "…"
    if isinstance(value, list):
        return [cut(item, most_text, most_items) for item in value[:most_items]]
    if isinstance(value, dict):
        return {_cut_name(name): cut(item, most_text, most_items) for name, item in _first(value, most_items)}
    return value


def _by_rank(
    entries: Iterable[Mapping[str, Any]], fields: Sequence[str], num_ranks: int
) -> list[dict[str, Any]]:
    """Return one entry for each rank that the run has, with these fields."""
    newest = {entry["rank"]: entry for entry in entries if entry["rank"] < num_ranks}
    return [
        {name: cut(entry[name], MAX_NAME) for name in fields if name in entry} for entry in newest.values()
    ]


def _sample(content: Any, kind: Any) -> Any:
    """Return the content of a sample; names of columns and classes, and a table's cells, are short."""
    if kind == "rows":
        return cut(content, MAX_CELL)
    content = cut(content, MAX_SAMPLE_TEXT, MAX_SAMPLE_ITEMS)
    for entry in content if isinstance(content, list) else ():
        if isinstance(entry, dict):
            entry |= {name: cut(entry[name], MAX_NAME) for name in ("label", "prediction") if name in entry}
    return content


def _first(values: Mapping[str, Any], most: int) -> Iterable[tuple[str, Any]]:
    return islice(values.items(), most)


def _small_square(confusion: list[list[float]] | None) -> list[list[float]] | None:
    """Return a confusion matrix that can be drawn, else None."""
    num_classes = len(confusion or ())
    is_square = confusion is not None and all(len(row) == num_classes for row in confusion)
    return confusion if is_square and num_classes <= MAX_CLASSES else None
