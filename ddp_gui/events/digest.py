"""What the list shows of a run, computed from its events in chunks, without holding them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import orjson

from ddp_gui.events import event_reader, fold
from ddp_gui.events.curve import Curve
from ddp_gui.events.event_reader import DAMAGE
from ddp_gui.events.fold import Fold
from trainers.contract.events import Event

DEVICE_KINDS = ("cpu", "cuda")


@dataclass
class Digest(Fold):
    """The newest numbers of a run, its best evaluation, its duration and its sparkline."""

    offset: int = 0
    inode: int = 0
    num_steps: int | None = None
    loss: float | None = None
    device_kind: str | None = None
    curve: Curve = field(default_factory=Curve)
    # A damaged line was found: from then on each line is validated.
    is_careful: bool = False

    @property
    def took_s(self) -> float | None:
        """The seconds the run was active, without the time between stop and resume."""
        return None if self.began_unix_s is None else self.active_s()

    def folded(self) -> str:
        """Serialise the digest as a short text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def unfolded(cls, text: str) -> Digest:
        """Return the digest that `folded` serialised.

        Raises:
            ValueError, LookupError, TypeError: when it was not.
        """
        raw = orjson.loads(text)
        records = [(int(step), float(value)) for step, value in raw["records"]]
        return cls(**raw | {"curve": Curve(**raw["curve"]), "records": records})

    def is_of_another_file(self, path: Path) -> bool:
        """Tell whether the id now belongs to another run: deleted and created again."""
        if self.offset == 0:
            return False
        try:
            about = path.stat()
        except FileNotFoundError:
            return True
        return about.st_ino != self.inode or about.st_size < self.offset

    def catch_up(self, path: Path, time_limit_s: float | None = None) -> bool:
        """Read on from the end of the last read; return True if nothing is left to read.

        A last line without its newline is left for later.

        Args:
            time_limit_s: stop after about this time, even if there is more.
        """
        ends_at = None if time_limit_s is None else time.monotonic() + time_limit_s
        try:
            self.inode = path.stat().st_ino
            while self._take_batch(path):
                if ends_at is not None and time.monotonic() > ends_at:
                    return False
        except FileNotFoundError:
            pass
        return True

    def _take_batch(self, path: Path) -> bool:
        if self.is_careful:
            batch, end, _ = event_reader.read_carefully(path, self.offset)
            self._take(batch)
        else:
            try:
                batch, end = event_reader.read_batch(path, self.offset)
                self._take(batch)
            except DAMAGE:
                # Start over, because a batch that is partially added cannot be undone.
                vars(self).update(vars(Digest(inode=self.inode, is_careful=True)))
                return True
        has_more, self.offset = end > self.offset, end
        return has_more

    def _take(self, batch: list[Event]) -> None:
        steps: list[Event] = []
        for event in batch:
            # Each one's: the clock may have been set back anywhere.
            self.take_time(event["time_unix_s"], is_start=fold.is_start(event))
            kind = event["kind"]
            if kind == "step":
                steps.append(event)
            elif kind == "eval":
                self._take_steps(steps)
                steps = []
                self.take_evaluation(event["step"], event["metrics"])
            elif kind == "plan":
                self.num_steps = event["num_steps"]
            elif kind == "devices" and self.device_kind is None and event["devices"]:
                device_kind = event["devices"][0].get("kind")
                self.device_kind = device_kind if device_kind in DEVICE_KINDS else None
        self._take_steps(steps)

    def _take_steps(self, batch: list[Event]) -> None:
        if not batch:
            return
        steps = np.array([event["step"] for event in batch], np.int64)
        losses = np.array([event["loss"] for event in batch], np.float64)  # null becomes NaN
        kept = self.take_batch(steps)
        if kept.cut_from is not None:
            self.curve.cut_from(kept.cut_from)
        self.curve.add(steps[kept.places], losses[kept.places])
        self.loss = float(losses[-1]) if np.isfinite(losses[-1]) else None
