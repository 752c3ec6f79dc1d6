"""A run's effective steps and evaluations from beginning to end, for exports of any length.

The file is read twice and never held: first to find where the run went back to an older checkpoint, then to
yield what was not replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddp_gui.events import event_reader, fold
from ddp_gui.events.fold import Fold
from trainers.contract.events import Event

GATHERED = 8_192
# Numbers held at once: a run can have so many metrics that a few evaluations reach this limit.
MAX_CELLS = 4_000_000


@dataclass
class Survey:
    """What must be known of a file before its first row can be written."""

    last_seq: int = -1
    began_unix_s: float | None = None
    metrics: list[str] = field(default_factory=list)
    # Pairs (event, step): from this event on, the steps from this one on are replaced.
    cuts: list[tuple[int, int]] = field(default_factory=list)


def survey(path: Path) -> Survey:
    """Read a run's events once."""
    found, folded = Survey(), Fold()
    metrics: dict[str, None] = {}
    for batch in _batches(path):
        steps = [event for event in batch if event["kind"] == "step"]
        for begin, _, cut_from in folded.take_steps([event["step"] for event in steps]):
            if cut_from is not None:
                found.cuts.append((steps[begin]["seq"], cut_from))
        for event in batch:
            if event["kind"] == "eval":
                metrics |= dict.fromkeys(event["metrics"])
        found.last_seq = batch[-1]["seq"]
        if found.began_unix_s is None:
            found.began_unix_s = batch[0]["time_unix_s"]
    found.metrics = list(metrics)
    return found


def history(path: Path, known: Survey) -> Iterator[list[Event]]:
    """Yield the step and eval events that count, some thousand at a time, each with `elapsed_s`.

    `elapsed_s` is the active time of the run in seconds, without the time between stop and resume.
    """
    most = max(1, min(GATHERED, MAX_CELLS // max(1, len(known.metrics))))
    cuts = _ahead(known.cuts)
    cut_seq, cut_step = next(cuts)
    folded = Fold()
    gathered: list[Event] = []
    for event in _events(path):
        if event["seq"] > known.last_seq:
            break  # written since the survey
        folded.take_time(event["time_unix_s"], is_start=fold.is_start(event))
        while event["seq"] >= cut_seq:
            cut_seq, cut_step = next(cuts)
        if event["kind"] in ("step", "eval") and event["step"] < cut_step:
            event["elapsed_s"] = round(folded.active_s(), 4)
            gathered.append(event)
        if len(gathered) >= most:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _ahead(cuts: list[tuple[int, int]]) -> Iterator[tuple[float, float]]:
    """Yield (event, step): up to this event only steps below this one count."""
    lowest: list[tuple[float, float]] = [(float("inf"), float("inf"))]
    for seq, step in reversed(cuts):
        lowest.append((seq, min(step, lowest[-1][1])))
    return iter(reversed(lowest))


def _events(path: Path) -> Iterator[Event]:
    for batch in _batches(path):
        yield from batch


def _batches(path: Path) -> Iterator[list[Event]]:
    offset = 0
    while True:
        try:
            batch, end, _ = event_reader.read_carefully(path, offset)
        except FileNotFoundError:
            return
        if end == offset:
            return
        if batch:
            yield batch
        offset = end
