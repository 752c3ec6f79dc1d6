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

from trainers.forward.follower import Target
from trainers.forward.points import Point

INIT_TIMEOUT_S = 20


class Run:
    """A run of a project, continued by its id."""

    def __init__(self, target: Target) -> None:
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
WHOLE, LAST_PART = 1, 4


def _last_row(folder: Path) -> int:
    """Return the number of the last row in the files of this run; -1 without any."""
    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    rows = [-1]
    for file in folder.glob("wandb/*run-*/run-*.wandb"):
        parsed = map(record.FromString, records(file.read_bytes()))
        rows += [each.history.step.num for each in parsed if each.HasField("history")]
    return max(rows)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of a file: LevelDB's log format, whose first block has a header.

    https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    at, held = FILE_HEAD_BYTES, b""
    while at + HEAD_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD_BYTES:
            at += left
            continue
        begin = at + HEAD_BYTES
        at = begin + int.from_bytes(data[begin - 3 : begin - 1], "little")
        kind = data[begin - 1]
        if at > len(data) or not kind:
            return  # the rest of the file is incomplete
        held += data[begin:at]
        if kind in (WHOLE, LAST_PART):
            yield held
            held = b""
