"""Weights & Biases: online, or offline into the run's folder for `wandb sync`.

The library's background process writes every row into a file, in blocks, and sends it with retries. Rows have
the numbers of the events, which increase, so the files show which rows are missing after a kill. The x axis
of the charts is `step`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainers.forward.follower import TrackerTarget
from trainers.forward.points import Point

INIT_TIMEOUT_S = 20


class Run:
    """A run of a project, continued by its id."""

    def __init__(self, target: TrackerTarget) -> None:
        if target.address:
            os.environ["WANDB_BASE_URL"] = target.address
        wandb = importlib.import_module("wandb")
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=INIT_TIMEOUT_S,
            quiet=True,
            x_disable_stats=True,
        )
        self._run = wandb.init(
            project=target.project,
            name=target.run_name,
            id=target.key,
            resume=None if target.is_offline else "allow",
            mode="offline" if target.is_offline else "online",
            config=target.parameters,
            dir=target.folder,
            settings=settings,
        )
        self._last_row = _last_row(target.folder)
        self._run.define_metric("*", step_metric="step")
        files = f"wandb sync {target.folder}/wandb/offline-run-*"
        self.where = files if target.is_offline else str(self._run.url)

    def send(self, points: Sequence[Point]) -> None:
        """Store each point as one row."""
        for point in points:
            if point.seq > self._last_row:
                self._run.log({"step": point.step, **point.values, **point.texts}, step=point.seq)

    def close(self, run_state: str) -> None:
        """Wait until all rows are sent (online), and set the final status."""
        self._run.finish(exit_code=0 if run_state in ("finished", "stopped") else 1)


BLOCK_BYTES, HEAD_BYTES, FILE_HEAD_BYTES = 32768, 7, 7
FULL_RECORD, LAST_FRAGMENT = 1, 4


def _last_row(folder: Path) -> int:
    """Return the number of the last row in the files of this run; -1 without any."""
    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    rows = [-1]
    for file in folder.glob("wandb/*run-*/run-*.wandb"):
        parsed = map(record.FromString, records(file.read_bytes()))
        rows += [record_.history.step.num for record_ in parsed if record_.HasField("history")]
    return max(rows)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of a file: LevelDB's log format, whose first block has a header.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    offset, record = FILE_HEAD_BYTES, b""
    while offset + HEAD_BYTES <= len(data):
        num_left = BLOCK_BYTES - offset % BLOCK_BYTES
        if num_left < HEAD_BYTES:
            offset += num_left
            continue
        start = offset + HEAD_BYTES
        offset = start + int.from_bytes(data[start - 3 : start - 1], "little")
        kind = data[start - 1]
        if offset > len(data) or not kind:
            return  # the rest of the file is incomplete
        record += data[start:offset]
        if kind in (FULL_RECORD, LAST_FRAGMENT):
            yield record
            record = b""
