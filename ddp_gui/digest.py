"""What the list shows of a run, read from its events without holding them."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ddp_gui.evaluations import Evaluations

_SCAN_BYTES = 4 * 1024 * 1024
_EVAL_LINE = re.compile(rb'^.*"kind":"eval".*$', re.MULTILINE)


@dataclass
class Digest:
    """What the list shows of a run, kept up to date without holding its events."""

    offset: int = 0
    inode: int = 0
    began_unix_s: float | None = None
    num_steps: int | None = None
    step: int = 0
    loss: float | None = None
    evaluations: Evaluations = field(default_factory=Evaluations)
    device_kind: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_of_another_file(self, path: Path) -> bool:
        """Tell whether the run of this id is not the one that was read: deleted, made anew."""
        try:
            about = path.stat()
        except FileNotFoundError:
            return self.offset > 0
        return self.offset > 0 and (about.st_ino != self.inode or about.st_size < self.offset)

    def catch_up(self, path: Path) -> None:
        """Read on from where the last look ended; only evaluations and the newest step are parsed."""
        try:
            with self.lock, path.open("rb") as file:
                self.inode = os.fstat(file.fileno()).st_ino
                while True:
                    file.seek(self.offset)
                    chunk = file.read(_SCAN_BYTES)
                    end = chunk.rfind(b"\n") + 1
                    if end == 0:
                        return
                    self._take(chunk[:end])
                    self.offset += end
        except FileNotFoundError:
            return

    def _take(self, chunk: bytes) -> None:
        if self.began_unix_s is None:
            self.began_unix_s = json.loads(chunk[: chunk.index(b"\n")])["time_unix_s"]
        for line in _EVAL_LINE.findall(chunk):
            self.evaluations.add(json.loads(line))
        plan = _last_line_with(chunk, b'"kind":"plan"')
        if plan is not None:
            self.num_steps = json.loads(plan)["num_steps"]
        newest_step = _last_line_with(chunk, b'"kind":"step"')
        if newest_step is not None:
            event = json.loads(newest_step)
            self.step, self.loss = event["step"], event["loss"]
        if self.device_kind is None:
            devices = _last_line_with(chunk, b'"kind":"devices"')
            if devices is not None:
                self.device_kind = json.loads(devices)["devices"][0]["kind"]


def _last_line_with(chunk: bytes, mark: bytes) -> bytes | None:
    found = chunk.rfind(mark)
    if found < 0:
        return None
    start = chunk.rfind(b"\n", 0, found) + 1
    return chunk[start : chunk.index(b"\n", found)]
