"""A run's numbers as CSV, JSON and TensorBoard's event file, written piece by piece."""

from __future__ import annotations

import csv
import io
import re
import sys
import tempfile
import zipfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from ddp_gui.background.low_priority import printed_by
from ddp_gui.events import event_reader, numbers
from ddp_gui.http.visible import visible
from ddp_gui.runs.exports import tfevents
from trainers.contract import events
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory

Pieces = Iterator[bytes]

STEP_COLUMNS = ("step", "epoch", "time_unix_s", "elapsed_s", *events.FIELDS["step"][2:])
EVAL_COLUMNS = ("step", "epoch", "time_unix_s", "elapsed_s", "loss")
VALIDATION = "validation_"
ZIP_PIECE_BYTES = 256 * 1024
LAST_UNIX_S = 1e11  # far beyond any clock
# A spreadsheet reads a cell that begins with one of these signs as a formula; the wide ones too in a Japanese
# locale. It splits cells at its own list separator, which is ";" in many countries: a sign after any possible
# separator begins a cell as well. Quoting alone does not prevent this, because a quote counts only at the
# beginning of a cell, and in a locale with ";" all of a line up to the first ";" is one cell.
_FORMULA_START = re.compile(r"""(^|[;,|\t\n])(["'\s]{0,50})(?=[=+\-@＝＋－＠])""")


def beside(
    files: Sequence[Mapping[str, Any]], overview_rows: Sequence[Mapping[str, Any]] | None = None
) -> Pieces:
    """Yield one file, or a zip of several, made by a process that nobody's click waits for.

    Args:
        files: of each its `name`, the directory as `run`, the `kind`, and what JSON says `about` the run.
        overview_rows: the rows of a table of all runs; given, also without a row, it is a zip.
    """
    return printed_by("ddp_gui.runs.exports.exports", {"files": files, "rows": overview_rows})


def made(asked: Mapping[str, Any]) -> Pieces:
    """Yield what `beside` was asked for."""
    files: list[tuple[str, Callable[[], Pieces]]] = [
        (each["name"], partial(_pieces_of, each)) for each in asked["files"]
    ]
    if asked["rows"]:
        files.insert(0, ("runs.csv", lambda: iter([overview(asked["rows"])])))
    return zip_pieces(files) if asked["rows"] is not None else files[0][1]()


def _pieces_of(file: Mapping[str, Any]) -> Pieces:
    run = RunDirectory(Path(file["run"]))
    if file["kind"] == "json":
        return json_pieces(run, file["about"])
    return csv_pieces(run) if file["kind"] == "csv" else tfevents_pieces(run)


def csv_pieces(run: RunDirectory) -> Pieces:
    """Yield one row a step; an evaluation stands in columns of its own, in the row of its step."""
    known = numbers.survey(run.events)
    names = ["loss", *known.metrics]
    yield csv_rows([[*STEP_COLUMNS, *(VALIDATION + name for name in names)]])
    waiting: list[Any] | None = None
    for batch in numbers.history(run.events, known):
        rows = []
        for event in batch:
            if event["kind"] == "eval" and waiting is not None and waiting[0] == event["step"]:
                waiting[len(STEP_COLUMNS) :] = _evaluation(event, names)
                continue
            if waiting is not None:
                rows.append(waiting)
            waiting = _csv_row(event, names)
        yield csv_rows(rows)
    if waiting is not None:
        yield csv_rows([waiting])


def json_pieces(run: RunDirectory, about: Mapping[str, Any]) -> Pieces:
    """Yield one object: what `about` says, `steps` and `evaluations` as columns of equal length."""
    known = numbers.survey(run.events)
    metrics = [f"metrics.{name}" for name in known.metrics]
    with ExitStack() as files:
        # Beside memory: the columns come one after the other, the events all at once.
        steps = _Columns(STEP_COLUMNS, files)
        evaluations = _Columns((*EVAL_COLUMNS, *metrics), files)
        for batch in numbers.history(run.events, known):
            steps.add([event for event in batch if event["kind"] == "step"])
            evaluations.add(
                [
                    event | {f"metrics.{name}": value for name, value in event["metrics"].items()}
                    for event in batch
                    if event["kind"] == "eval"
                ]
            )
        head = orjson.dumps(about)[1:-1]
        yield b"{" + (head + b"," if head else b"") + b'"steps":{'
        yield from _gathered(steps.pieces())
        yield b'},"evaluations":{'
        yield from _gathered(evaluations.pieces())
        yield b"}}\n"


def tfevents_pieces(run: RunDirectory) -> Pieces:
    """Yield TensorBoard's event file: `train/…` of every step, `validation/…` of every evaluation."""
    known = numbers.survey(run.events)
    yield tfevents.version_record(known.began_unix_s or 0.0)
    for batch in numbers.history(run.events, known):
        yield _encoded(batch, known.metrics)


def zip_pieces(files: Iterable[tuple[str, Callable[[], Pieces]]]) -> Pieces:
    """Yield a zip of files that are made one after the other as they are asked for."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, pieces in files:
            with archive.open(name, "w", force_zip64=True) as file:
                for piece in pieces():
                    file.write(piece)
                    if len(sink.held) >= ZIP_PIECE_BYTES:
                        yield sink.take()
    yield sink.take()


def overview(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a table of runs with what they are and how they ended; people's words cannot act as formulas."""
    columns = (
        "run_id", "name", "tags", "note", "state", "model", "dataset", "strategy", "nproc_per_node", "step",
        "num_steps", "loss", "best_metric", "best_value", "best_step", "created_unix_s", "took_s",
        "broken_on_purpose",
    )  # fmt: skip
    table = [list(columns)]
    for row in rows:
        best = row["best_metric"] or {}
        said = dict(row) | {
            "tags": ", ".join(row["tags"]),
            "best_metric": best.get("name"),
            "best_value": best.get("value"),
            "best_step": best.get("step"),
            "broken_on_purpose": (row.get("mistake") or {}).get("name"),
        }
        table.append([said[name] for name in columns])
    return csv_rows(table)


def csv_rows(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return rows as CSV in UTF-8, with every text quoted and none of them a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", errors="replace")


def _cell(value: Any) -> Any:
    return _FORMULA_START.sub(r"\1\2'", visible(value)) if isinstance(value, str) else value


def began_unix_s(run: RunDirectory) -> int:
    """Return when the run began, for the name of its event file."""
    first = next(iter(event_reader.read_carefully(run.events, 0)[0]), None) if run.events.exists() else None
    # A damaged line may hold any number, also one of 300 digits.
    if first is not None and 0 <= first["time_unix_s"] < LAST_UNIX_S:
        return int(first["time_unix_s"])
    return int(run.config.stat().st_mtime)


def _csv_row(event: Event, names: Sequence[str]) -> list[Any]:
    if event["kind"] == "step":
        return [event.get(name) for name in STEP_COLUMNS] + [None] * len(names)
    blank: list[Any] = [None] * (len(STEP_COLUMNS) - 4)
    return [event.get(name) for name in STEP_COLUMNS[:4]] + blank + _evaluation(event, names)


def _evaluation(event: Event, names: Sequence[str]) -> list[Any]:
    return [event["loss"], *(event["metrics"].get(name) for name in names[1:])]


def _encoded(batch: Sequence[Event], metrics: Sequence[str]) -> bytes:
    """Return the records of some events, in their order."""
    records: list[bytes] = [b""] * len(batch)
    is_step = np.array([event["kind"] == "step" for event in batch])
    train = [f"train/{name}" for name in events.FIELDS["step"][1:]]
    validation = [f"validation/{name}" for name in ("loss", *metrics)]
    for chosen, tags, row_of in (
        (np.flatnonzero(is_step), train, _step_values),
        (np.flatnonzero(~is_step), validation, lambda event: _evaluation(event, ("loss", *metrics))),
    ):
        picked = [batch[index] for index in chosen.tolist()]
        for index, record in zip(chosen.tolist(), _records_of(picked, tags, row_of), strict=True):
            records[index] = record
    return b"".join(records)


def _records_of(
    picked: Sequence[Event], tags: Sequence[str], row_of: Callable[[Event], list[float | None]]
) -> list[bytes]:
    """Return the records of events of one kind, encoded together where they hold the same numbers."""
    if not picked:
        return []
    values = np.array([row_of(event) for event in picked], dtype=np.float64)
    times = np.array([event["time_unix_s"] for event in picked])
    steps = np.array([event["step"] for event in picked])
    is_there = ~np.isnan(values)
    records: list[bytes] = [b""] * len(picked)
    patterns, pattern_of_row = np.unique(is_there, axis=0, return_inverse=True)
    for number, has in enumerate(patterns):
        rows = np.flatnonzero(pattern_of_row == number)
        names = [tag for tag, is_given in zip(tags, has.tolist(), strict=True) if is_given]
        if not names:
            continue
        encoded = tfevents.scalar_records(times[rows], steps[rows], names, values[rows][:, has])
        for index, record in zip(rows.tolist(), encoded, strict=True):
            records[index] = record
    return records


def _step_values(event: Event) -> list[float | None]:
    return [event.get(name) for name in events.FIELDS["step"][1:]]


def _gathered(pieces: Pieces) -> Pieces:
    """Yield the same bytes in larger pieces: each costs a turn of the server."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= ZIP_PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


class _Columns:
    """Columns of JSON values, all in one file until they are put together: a run may have any number."""

    def __init__(self, names: Sequence[str], files: ExitStack) -> None:
        self._file: IO[bytes] = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        # Where each column's pieces lie in the file: offset and length, one after the other.
        self._pieces = {name: array("q") for name in names}

    def add(self, batch: Sequence[Event]) -> None:
        for name, pieces in self._pieces.items():
            text = orjson.dumps([event.get(name) for event in batch])[1:-1]
            if text:
                pieces.extend((self._file.tell(), len(text)))
                self._file.write(text)

    def pieces(self) -> Pieces:
        for number, (name, pieces) in enumerate(self._pieces.items()):
            yield (b"," if number else b"") + orjson.dumps(name) + b":["
            for index in range(0, len(pieces), 2):
                self._file.seek(pieces[index])
                yield (b"," if index else b"") + self._file.read(pieces[index + 1])
            yield b"]"


class _Sink(io.RawIOBase):
    """What a zip writes into: holds it until it is taken away."""

    def __init__(self) -> None:
        self.held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.held += piece
        return len(piece)

    def take(self) -> bytes:
        taken = bytes(self.held)
        self.held.clear()
        return taken


if __name__ == "__main__":
    for made_piece in made(orjson.loads(sys.stdin.buffer.read())):
        sys.stdout.buffer.write(made_piece)
