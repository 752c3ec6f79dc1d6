"""Files in a run's folder `watch/` by which the ranks of a script and the supervisor share numbers.

Each rank appends its steps and its notes to files of its own; the process of rank 0 reads them, merges the
ranks, and writes the run's events. No process group of the script is used, because additional collectives
could change the order of the script's collectives.

`steps_<rank>_<part>.bin` contains a `Row` of doubles per step, `notes_<rank>.jsonl` one JSON object per line,
and `control` the numbers of `Control`. No locks are needed: each number has one writer.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from array import array
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = "watch"
# Environment variable: each rank also records the facts for lessons in code (`details.py`).
DETAILS = "WATCH_DETAILS"
# One optimizer step of one rank. Times are in seconds; NaN means unknown.
Row = namedtuple(
    "Row",
    "step epoch loss lr grad_norm samples ended_unix_s step_time_s data_time_s forward_time_s "
    "backward_time_s optimizer_time_s wait_time_s num_batches",
)
_ROW = struct.Struct(f"{len(Row._fields)}d")
# Maximum size of a file of steps; then a new file begins, so that the reader can delete the old one.
PART_BYTES = 4 * 2**20
MAX_RANKS = 1024
_MAX_NOTE_BYTES = 2**20

# Indices of the values that all ranks share; two values for each rank follow.
ASKS, STOP_STEP, SAVES, SAVE_STEP = range(4)
_COMMON = 8
STEP, END = range(2)
# Values of END.
LIVE, DONE, FAILED = range(3)


class Control:
    """Numbers that the processes of a run share.

    `ASKS` is 1 after the script has called `watch.should_stop`, `SAVES` after `watch.load` and `watch.save`.
    From `STOP_STEP` on, `should_stop` returns True (0: never). From `SAVE_STEP` on, the next `save` writes a
    checkpoint. Every rank compares these with its own step count, so that all ranks act at the same step.

    Memory is shared only within a machine. With several machines, each machine has its own file; `exchange`
    copies requests from machine 0 to the others, and the numbers of their ranks to machine 0.

    Args:
        machine: this machine's number.
        ranks_per_machine: number of ranks per machine; 0: all ranks are on this machine.
    """

    def __init__(
        self, run_dir: Path, *, machine: int = 0, num_ranks: int = 0, ranks_per_machine: int = 0
    ) -> None:
        """Open the file, and create it if it is missing.

        Raises:
            OSError: if it cannot be created.
        """
        self._folder = folder = run_dir / FOLDER
        self._machine, self._ranks_per_machine = machine, ranks_per_machine
        self._num_machines = num_ranks // ranks_per_machine if ranks_per_machine else 1
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise OSError(f"{folder} is a link")
        size = 8 * (_COMMON + 2 * MAX_RANKS)
        descriptor = os.open(
            self._path(machine), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
            self._numbers = memoryview(self._map).cast("Q")
        finally:
            os.close(descriptor)

    @property
    def has_other_machines(self) -> bool:
        return self._num_machines > 1

    def exchange(self) -> None:
        """Copy the numbers from the files of other machines; each call reopens the files, as NFS requires.

        Raises:
            OSError: if the shared folder cannot be accessed.
        """
        if not self.has_other_machines:
            return
        for other_machine in range(1, self._num_machines) if self._machine == 0 else (0,):
            numbers = array("Q")
            data = _read_from(self._path(other_machine), 0)
            numbers.frombytes(data[: len(data) - len(data) % 8])
            if len(numbers) < len(self._numbers):
                continue  # the file does not exist yet
            first, num_own = (
                _COMMON + 2 * other_machine * self._ranks_per_machine,
                2 * self._ranks_per_machine,
            )
            indices = range(first, first + num_own)
            for index in indices if self._machine == 0 else (STOP_STEP, SAVE_STEP):
                self._numbers[index] = numbers[index]
        self._map.flush()

    def _path(self, machine: int) -> Path:
        return self._folder / (f"control_{machine}" if machine else "control")

    def get(self, index: int) -> int:
        """Return one of the common numbers."""
        return self._numbers[index]

    def set(self, index: int, value: int) -> None:
        """Set one of the common numbers."""
        self._numbers[index] = value

    def get_rank_value(self, rank: int, counter: int) -> int:
        """Return the value that a rank stored for a counter."""
        return self._numbers[_COMMON + 2 * rank + counter]

    def set_rank_value(self, rank: int, counter: int, value: int) -> None:
        """Set the value of a counter for a rank."""
        self._numbers[_COMMON + 2 * rank + counter] = value

    def newest_step(self, num_ranks: int) -> int:
        """Return the highest step count of all ranks."""
        return max(self.get_rank_value(rank, STEP) for rank in range(min(num_ranks, MAX_RANKS)))


def read_ends(run_dir: Path, num_ranks: int) -> list[int]:
    """Return LIVE, DONE or FAILED for each rank's script; empty if nothing was recorded."""
    if not (run_dir / FOLDER / "control").is_file():
        return []
    control = Control(run_dir)
    return [control.get_rank_value(rank, END) for rank in range(min(num_ranks, MAX_RANKS))]


class SpoolWriter:
    """Appends the steps and notes of one rank.

    Args:
        syncs: True if another machine reads the files, so `sync` must write them to the file server.
    """

    def __init__(self, run_dir: Path, rank: int, *, syncs: bool = False) -> None:
        self._folder = run_dir / FOLDER
        self._rank = rank
        self._syncs = syncs
        self._part = 0
        self._steps = _append(self._folder / _steps_name(rank, 0))
        self._notes = _append(self._folder / notes_name(rank))

    def add_steps(self, rows: array[float]) -> None:
        """Append the fields of rows."""
        _write_all(self._steps, rows.tobytes())
        if os.fstat(self._steps).st_size > PART_BYTES:
            self._part += 1
            next_file = _append(self._folder / _steps_name(self._rank, self._part))
            os.close(self._steps)  # on NFS, closing the file writes the rest to the server
            self._steps = next_file

    def sync(self) -> None:
        """Make the appended records visible to other machines, if `syncs`."""
        if self._syncs:
            os.fsync(self._steps)
            os.fsync(self._notes)

    def add_note(self, kind: str, **values: Any) -> None:
        """Append one note."""
        line = json.dumps({"kind": kind, **values}, default=str).encode()
        if len(line) < _MAX_NOTE_BYTES:
            _write_all(self._notes, line + b"\n")


class SpoolReader:
    """Reads the records that one rank appended since the last call; deletes files of steps once read."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._folder = run_dir / FOLDER
        self._rank = rank
        self._part = self._offset = self._notes_offset = 0

    def steps(self) -> Iterator[Row]:
        """Yield the new steps, oldest first."""
        while True:
            # The writer begins a new file only after this size.
            is_full = self._offset > PART_BYTES
            has_next = is_full and (self._folder / _steps_name(self._rank, self._part + 1)).exists()
            path = self._folder / _steps_name(self._rank, self._part)
            data = _read_from(path, self._offset)
            data = data[: len(data) - len(data) % _ROW.size]
            self._offset += len(data)
            yield from map(Row._make, _ROW.iter_unpack(data))
            if has_next:
                path.unlink(missing_ok=True)
                self._part, self._offset = self._part + 1, 0
            elif is_full or self._offset <= PART_BYTES:
                return

    def notes(self) -> Iterator[dict[str, Any]]:
        """Yield the new notes, oldest first."""
        data = _read_from(self._folder / notes_name(self._rank), self._notes_offset)
        end = data.rfind(b"\n") + 1
        self._notes_offset += end
        for line in data[:end].splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def clear(run_dir: Path) -> None:
    """Remove the files of an earlier start."""
    folder = run_dir / FOLDER
    for path in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
        path.unlink(missing_ok=True)


def notes_name(rank: int) -> str:
    """Return the name of the file with a rank's notes."""
    return f"notes_{rank}.jsonl"


def _steps_name(rank: int, part: int) -> str:
    return f"steps_{rank}_{part}.bin"


def _append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""
