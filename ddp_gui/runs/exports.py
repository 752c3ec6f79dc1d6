"""Exports of runs as CSV, JSON and TensorBoard event files, and zip archives of them."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import re
import struct
import sys
import tempfile
import zipfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import HTTPException

from ddp_gui.background.workers import SLOW, GeneratedFile, Router, module_output
from ddp_gui.events import event_reader
from ddp_gui.http.shell import visible
from ddp_gui.runs.runs import NoSuchRunError, RunStore
from trainers.contract import events
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory, file_stem
from trainers.files.plain_files import open_plain
from trainers.machine.os_errors import explain

Bytes = npt.NDArray[np.uint8]

FILE_VERSION = b"brain.Event:2"
_CASTAGNOLI = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# Keys (field number and wire type) of event.proto and summary.proto, which precede each value.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"


def _make_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_CASTAGNOLI), table >> 1).astype(np.uint32)
    return table


_TABLE = _make_table()


def crc32c(rows: Bytes) -> npt.NDArray[np.uint32]:
    """Return the CRC-32C (RFC 3720) of each row; all rows have the same length, so one loop serves all."""
    crc: npt.NDArray[np.uint32] = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    low, eight = np.uint32(0xFF), np.uint32(8)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & low] ^ (crc >> eight)
    return crc ^ np.uint32(0xFFFFFFFF)


def masked_crc32c(rows: Bytes) -> npt.NDArray[np.uint32]:
    """Return the masked CRC-32C of each row, as TFRecord files store it."""
    crc = crc32c(rows)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK_DELTA)


def version_record(time_unix_s: float) -> bytes:
    """Return the first record of an event file."""
    version = _FILE_VERSION + varint(len(FILE_VERSION)) + FILE_VERSION
    return b"".join(frame_records([_WALL_TIME + struct.pack("<d", time_unix_s) + version]))


def scalar_event(time_unix_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return one step's event with a value for each tag."""
    numbers = np.array(list(values.values()), "<f4").tobytes()
    summary = b"".join(
        _tag_prefix(tag) + numbers[4 * index : 4 * index + 4] for index, tag in enumerate(values)
    )
    return (
        _WALL_TIME
        + struct.pack("<d", time_unix_s)
        + _STEP
        + varint(step)
        + _SUMMARY
        + varint(len(summary))
        + summary
    )


@functools.cache
def _tag_prefix(tag: str) -> bytes:
    """Return the bytes before a tag's value."""
    name = tag.encode()
    value = _TAG + varint(len(name)) + name + _SIMPLE_VALUE
    return _VALUE + varint(len(value) + 4) + value


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint: seven bits per byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def frame_records(records: Sequence[bytes]) -> list[bytes]:
    """Return events as records. Computes checksums of records of equal length together."""
    framed = list(records)
    lengths = np.array([len(record) for record in records])
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length).tolist()
        rows = np.frombuffer(b"".join(records[index] for index in chosen), np.uint8).reshape(-1, length)
        size = np.frombuffer(struct.pack("<Q", length), np.uint8)[None, :]
        head = size.tobytes() + masked_crc32c(size).astype("<u4").tobytes()
        checksums = masked_crc32c(rows).astype("<u4").tobytes()
        for row, index in enumerate(chosen):
            framed[index] = head + records[index] + checksums[4 * row : 4 * row + 4]
    return framed


Pieces = Iterator[bytes]

STEP_COLUMNS = ("step", "epoch", "time_unix_s", "elapsed_s", *events.FIELDS["step"][2:])
EVAL_COLUMNS = ("step", "epoch", "time_unix_s", "elapsed_s", "loss")
VALIDATION = "validation_"
ZIP_PIECE_BYTES = 256 * 1024
LAST_UNIX_S = 1e11  # far beyond any clock
# A spreadsheet treats a cell that begins with one of these characters as a formula (full-width ones in a
# Japanese locale). It splits cells at its list separator, which is ";" in many countries, so a character
# after any possible separator can also begin a cell. Quoting alone does not prevent this: a quote is
# recognised only at the start of a cell, and in a locale with ";" the line up to the first ";" is a single
# cell.
_FORMULA_START = re.compile(r"""(^|[;,|\t\n])(["'\s]{0,50})(?=[=+\-@＝＋－＠])""")


def stream_export(
    files: Sequence[Mapping[str, Any]], overview_rows: Sequence[Mapping[str, Any]] | None = None
) -> Pieces:
    """Yield one file, or a zip of several files. A separate process makes it, so that the page stays
    responsive.

    Args:
        files: for each file its `name`, the run's directory as `run`, the `kind`, and for JSON the facts
            `about` the run.
        overview_rows: rows of a table of all runs. If given, even empty, the result is a zip.
    """
    return module_output("ddp_gui.runs.exports", {"files": files, "rows": overview_rows})


def generate_export(request: Mapping[str, Any]) -> Pieces:
    """Yield the bytes that `stream_export` requested; runs in the separate process."""
    files: list[tuple[str, Callable[[], Pieces]]] = [
        (file["name"], partial(_file_pieces, file)) for file in request["files"]
    ]
    if request["rows"]:
        files.insert(0, ("runs.csv", lambda: iter([overview(request["rows"])])))
    return zip_pieces(files) if request["rows"] is not None else files[0][1]()


def _file_pieces(file: Mapping[str, Any]) -> Pieces:
    run = RunDirectory(Path(file["run"]))
    if file["kind"] == "json":
        return json_pieces(run, file["about"])
    return csv_pieces(run) if file["kind"] == "csv" else tfevents_pieces(run)


def csv_pieces(run: RunDirectory) -> Pieces:
    """Yield CSV with one row per step. An evaluation fills additional columns in the row of its step."""
    survey = event_reader.survey_numbers(run.events)
    names = ["loss", *survey.metrics]
    yield csv_rows([[*STEP_COLUMNS, *(VALIDATION + name for name in names)]])
    pending_row: list[Any] | None = None
    for batch in event_reader.history_of_numbers(run.events, survey):
        rows = []
        for event in batch:
            if event["kind"] == "eval" and pending_row is not None and pending_row[0] == event["step"]:
                pending_row[len(STEP_COLUMNS) :] = _evaluation_values(event, names)
                continue
            if pending_row is not None:
                rows.append(pending_row)
            pending_row = _csv_row(event, names)
        yield csv_rows(rows)
    if pending_row is not None:
        yield csv_rows([pending_row])


def json_pieces(run: RunDirectory, metadata: Mapping[str, Any]) -> Pieces:
    """Yield a JSON object: the metadata, and `steps` and `evaluations` as columns of equal length."""
    survey = event_reader.survey_numbers(run.events)
    metrics = [f"metrics.{name}" for name in survey.metrics]
    with ExitStack() as files:
        # Buffer columns in files: each event has values of all columns, but the output is columnar.
        steps = _Columns(STEP_COLUMNS, files)
        evaluations = _Columns((*EVAL_COLUMNS, *metrics), files)
        for batch in event_reader.history_of_numbers(run.events, survey):
            steps.add([event for event in batch if event["kind"] == "step"])
            evaluations.add(
                [
                    event | {f"metrics.{name}": value for name, value in event["metrics"].items()}
                    for event in batch
                    if event["kind"] == "eval"
                ]
            )
        head = orjson.dumps(metadata)[1:-1]
        yield b"{" + (head + b"," if head else b"") + b'"steps":{'
        yield from _merge_pieces(steps.pieces())
        yield b'},"evaluations":{'
        yield from _merge_pieces(evaluations.pieces())
        yield b"}}\n"


def tfevents_pieces(run: RunDirectory) -> Pieces:
    """Yield a TensorBoard event file: `train/…` for every step, `validation/…` for every evaluation."""
    survey = event_reader.survey_numbers(run.events)
    yield version_record(survey.began_unix_s or 0.0)
    for batch in event_reader.history_of_numbers(run.events, survey):
        yield _encode_events(batch, survey.metrics)


def zip_pieces(
    files: Iterable[tuple[str, Callable[[], Pieces]]], compression: int = zipfile.ZIP_DEFLATED
) -> Pieces:
    """Yield a zip of files, each made when it is needed."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", compression, compresslevel=1) as archive:
        for name, pieces in files:
            with archive.open(name, "w", force_zip64=True) as file:
                for piece in pieces():
                    file.write(piece)
                    if len(sink.buffer) >= ZIP_PIECE_BYTES:
                        yield sink.take()
    yield sink.take()


def overview(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a CSV table of runs with their properties and results, without cells that act as formulas."""
    columns = (
        "run_id", "name", "tags", "note", "state", "model", "dataset", "strategy", "nproc_per_node", "step",
        "num_steps", "loss", "best_metric", "best_value", "best_step", "created_unix_s", "took_s",
        "broken_on_purpose", "imported",
    )  # fmt: skip
    table = [list(columns)]
    for row in rows:
        best = row["best_metric"] or {}
        row_values = dict(row) | {
            "tags": ", ".join(row["tags"]),
            "best_metric": best.get("name"),
            "best_value": best.get("value"),
            "best_step": best.get("step"),
            "broken_on_purpose": (row.get("mistake") or {}).get("name"),
            "imported": (row.get("imported") or {}).get("words"),
        }
        table.append([row_values[name] for name in columns])
    return csv_rows(table)


def csv_rows(rows: Iterable[Sequence[Any]]) -> bytes:
    """Encode rows as UTF-8 CSV. Text is quoted and cannot act as a formula in a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", errors="replace")


def _cell(value: Any) -> Any:
    return _FORMULA_START.sub(r"\1\2'", visible(value)) if isinstance(value, str) else value


def began_unix_s(run: RunDirectory) -> int:
    """Return the start time of a run in whole seconds, for the name of its event file."""
    first = next(iter(event_reader.read_batch(run.events, 0)[0]), None) if run.events.exists() else None
    # A damaged line can contain any number, even one with 300 digits.
    if first is not None and 0 <= first["time_unix_s"] < LAST_UNIX_S:
        return int(first["time_unix_s"])
    return int(run.config.stat().st_mtime)


def _csv_row(event: Event, names: Sequence[str]) -> list[Any]:
    if event["kind"] == "step":
        return [event.get(name) for name in STEP_COLUMNS] + [None] * len(names)
    blank: list[Any] = [None] * (len(STEP_COLUMNS) - 4)
    return [event.get(name) for name in STEP_COLUMNS[:4]] + blank + _evaluation_values(event, names)


def _evaluation_values(event: Event, names: Sequence[str]) -> list[Any]:
    return [event["loss"], *(event["metrics"].get(name) for name in names[1:])]


def _encode_events(batch: Sequence[Event], metrics: Sequence[str]) -> bytes:
    """Return the records of a batch of events, in order; an event without a number has no record."""
    step_tags = {f"train/{name}": name for name in events.FIELDS["step"][1:]}
    metric_tags = {f"validation/{name}": name for name in metrics}
    records = []
    for event in batch:
        if event["kind"] == "step":
            by_tag = {tag: event.get(name) for tag, name in step_tags.items()}
        else:
            metric_values = {tag: event["metrics"].get(name) for tag, name in metric_tags.items()}
            by_tag = {"validation/loss": event["loss"], **metric_values}
        values = {tag: value for tag, value in by_tag.items() if value is not None and value == value}
        if values:
            records.append(scalar_event(event["time_unix_s"], event["step"], values))
    return b"".join(frame_records(records))


def _merge_pieces(pieces: Pieces) -> Pieces:
    """Merge pieces into larger ones, because each piece costs an iteration of the server's event loop."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= ZIP_PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


class _Columns:
    """Columns of JSON values in a temporary file, because a run can have any number of steps."""

    def __init__(self, names: Sequence[str], files: ExitStack) -> None:
        self._file: IO[bytes] = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        # Offset and length of each piece in the file, alternating, by column.
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
    """The file that a zip archive is written to: buffers the bytes until `take`."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.buffer += piece
        return len(piece)

    def take(self) -> bytes:
        content = bytes(self.buffer)
        self.buffer.clear()
        return content


Format = Literal["csv", "json", "tfevents"]
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "tfevents": "application/octet-stream",
}
MAX_IN_ZIP = 200


def make_router(store: RunStore) -> Router:
    """Return the export routes below `/live/runs`."""
    router = Router(prefix="/live/runs")

    @router.get("/{run_id}/export.{kind}")
    @SLOW.handler
    def export(run_id: str, kind: Format) -> GeneratedFile:
        file = _file(store, run_id, kind)
        return GeneratedFile(SLOW, stream_export([file]), file["name"], MEDIA_TYPES[kind])

    @router.get("/export.zip")
    @SLOW.handler
    def export_several(ids: str, kind: Format = "csv") -> GeneratedFile:
        run_ids = list(dict.fromkeys(filter(None, ids.split(","))))
        if not 0 < len(run_ids) <= MAX_IN_ZIP:
            raise HTTPException(status_code=422, detail=f"ids must be 1 to {MAX_IN_ZIP} runs")
        files = []
        for number, run_id in enumerate(run_ids, start=1):
            file = _file(store, run_id, kind)
            stem = file_stem(run_id)
            # TensorBoard treats each folder as a run. Two ids may have the same stem, hence the number.
            folder = run_id if stem == run_id else f"{number}-{stem}"
            is_in_folder = kind == "tfevents" or stem != run_id
            files.append(file | {"name": f"{folder}/{file['name']}"} if is_in_folder else file)
        rows = [store.row(run_id) for run_id in run_ids] if kind == "csv" else []
        return GeneratedFile(SLOW, stream_export(files, rows), f"runs-{kind}.zip", "application/zip")

    return router


def _file(store: RunStore, run_id: str, kind: Format) -> dict[str, Any]:
    """Return the export process's input for one file of a run.

    Raises:
        NoSuchRunError: if there is no such run, or it cannot be read.
    """
    run = store.open(run_id)
    try:
        config = run.read_config()
        with contextlib.suppress(FileNotFoundError):
            # fail now: after the response has started, an error could only truncate it
            open_plain(run.events).close()
    except (OSError, ValueError) as error:
        raise NoSuchRunError(explain(error)) from error
    metadata: dict[str, Any] = {}
    if kind == "json":
        row = store.listing.row(run_id)
        metadata = {name: row[name] for name in ("run_id", "name", "tags", "note", "state")}
        metadata |= {"broken_on_purpose": row.get("mistake"), "config": config.to_json()}
    # The name shows that a run was broken on purpose.
    mark = "broken-on-purpose." if config.is_broken_on_purpose else ""
    name = f"{file_stem(run_id)}.{mark}{kind}"
    if kind == "tfevents":
        name = f"events.out.tfevents.{began_unix_s(run)}.{mark}{file_stem(run_id)}"
    return {"name": name, "run": str(run.path.absolute()), "kind": kind, "about": metadata}


if __name__ == "__main__":
    for output_piece in generate_export(orjson.loads(sys.stdin.buffer.read())):
        sys.stdout.buffer.write(output_piece)
