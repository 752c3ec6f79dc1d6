"""The stop requests among a run's commands, as the supervisor reads them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from trainers.files.json_files import parse_json, read_lines
from trainers.files.private_files import ForeignFileError, open_own

# Whoever reads may have been asleep; more than this is the clock that was set, not time that passed.
MOST_LATE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """Somebody wants the run to stop; `late_s`: how long ago that was said."""

    id: str
    save: bool
    late_s: float


class StopRequests:
    """Reads commands that are appended to a file from `offset` on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = path.stat().st_size if path.exists() else 0
        self._is_refused = False

    def read(self) -> list[StopRequest]:
        """Return the stop requests that have come since the last read."""
        try:
            with open_own(self._path) as file:
                lines, self.offset = read_lines(file, self.offset)
        except FileNotFoundError:
            return []
        except ForeignFileError as error:
            if not self._is_refused:
                print(f"commands cannot be read: {error}", flush=True)
            self._is_refused = True
            return []
        return [found for line in lines.split(b"\n") if (found := _stop_request(line)) is not None]


def _stop_request(line: bytes) -> StopRequest | None:
    try:
        command = parse_json(line)
        if command["name"] != "stop":
            return None
        late_s = time.time() - float(command.get("time_unix_s", time.time()))
        return StopRequest(
            id=str(command.get("id", "")),
            save=bool(command.get("save", True)),
            late_s=min(late_s, MOST_LATE_S) if late_s > 0 else 0.0,  # NaN is not above 0
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
