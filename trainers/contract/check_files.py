"""Files and limits of the machine check."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from trainers.files import plain_files, private_files, typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.typed import Limit
from trainers.machine.processes import GPU_KILL_WAIT_S, KILL_WAIT_S

# Time limit of one job: far longer than a job takes, even on a busy machine.
JOB_LIMIT_S = 120.0
PROBE_LIMIT_S = 120.0
# Time limit for a GPU to become free, because the driver releases a killed process late.
TEARDOWN_S = 20.0
# Four jobs: all-reduces, DDP, its resume, and the same run without interruption.
NUM_JOBS_BEFORE_STRATEGIES = 4
# Number of strategies other than DDP; each has its own job.
NUM_STRATEGIES = 6
# Time for the short checks of file system and disk, and for removing the jobs' folder.
FILES_S = 30.0

# Time to end a job: kill its processes together, then search for them once more.
KILL_S = GPU_KILL_WAIT_S + 2 * KILL_WAIT_S
# Time for a cancelled check to kill its job, remove the job's folder and save its results.
CANCEL_S = KILL_S + FILES_S


def longest_check_s(job_limit_s: float = JOB_LIMIT_S, num_strategies: int = NUM_STRATEGIES) -> float:
    """Return the maximum duration of a check in seconds: the case that every job hangs and is ended.

    Args:
        num_strategies: strategies other than DDP.
    """
    num_jobs = NUM_JOBS_BEFORE_STRATEGIES + num_strategies
    return PROBE_LIMIT_S + KILL_S + num_jobs * (TEARDOWN_S + job_limit_s + KILL_S) + 2 * FILES_S


FOLDER = ".check"
MAX_STORED = 5  # plus the latest complete check of each kind of device
VERSION = 1

_CHECK_ID = "[0-9a-f]{12}"


class CheckFiles:
    """The paths of the checks of one runs directory."""

    def __init__(self, runs_dir: Path) -> None:
        self.folder = runs_dir / FOLDER
        self.lock = self.folder / "lock"
        self.work = self.folder / "work"
        self.results = self.folder / "results.json"

    def report(self, check_id: str) -> Path:
        """Return the file for a bug report about one check.

        Raises:
            ValueError: if `check_id` is not a valid id.
        """
        if not re.fullmatch(_CHECK_ID, check_id):
            raise ValueError(f"check_id is {check_id[:80]!r}; allowed: the id of a check of this machine")
        return self.folder / f"report-{check_id}.txt"

    def read(self) -> list[dict[str, Any]]:
        """Return the stored checks, oldest first; empty if the file is missing or damaged.

        Raises:
            ForeignFileError: if another user owns it.
        """
        try:
            content = read_json(self.results, must_be_ours=True)
        except private_files.ForeignFileError:
            raise
        except (OSError, ValueError):
            return []
        checks = (
            content.get("checks") if isinstance(content, dict) and content.get("version") == VERSION else None
        )
        return (
            [check for check in checks or [] if typed.fits(_Check, check)] if isinstance(checks, list) else []
        )

    def keep(self, check: Mapping[str, Any], report: str) -> None:
        """Store a check and its file for a bug report, and delete the oldest ones.

        The latest complete check of each kind of device is never deleted, because later checks are compared
        with it.

        Raises:
            OSError: if the files cannot be written.
            ValueError: if another user owns the folder or a file.
        """
        private_files.make_folder(self.folder)
        all_checks = [*self.read(), dict(check)]
        complete_by_device = {
            str(entry.get("device_kind")): entry for entry in all_checks if entry.get("state") == "done"
        }
        required = [*all_checks[-MAX_STORED:], *complete_by_device.values()]
        stored = [entry for entry in all_checks if any(entry is item for item in required)]
        write_json_atomically(self.results, {"version": VERSION, "checks": stored}, mode=0o600)
        for entry in all_checks:
            if not any(entry is item for item in stored):
                plain_files.remove(self.report(entry["check_id"]))
        path = self.report(check["check_id"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            with os.fdopen(private_files.open_descriptor(path, flags), "wb") as file:
                file.write(report.encode())
        except OSError:
            plain_files.remove(path)  # half a report misleads
            raise


@dataclass(frozen=True, kw_only=True)
class _Finding:
    id: Any
    values: list[Any]


@dataclass(frozen=True, kw_only=True)
class _Check:
    """The fields by which a check can be shown and compared."""

    check_id: Annotated[str, Limit(pattern=_CHECK_ID)]
    started_unix_s: float
    findings: list[_Finding]
