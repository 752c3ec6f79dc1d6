"""Files and limits of the machine check."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.files import plain_files, private_files
from trainers.files.json_files import read_json, write_json_atomically
from trainers.machine.processes import GPU_KILL_WAIT_S, KILL_WAIT_S

# Far longer than a job takes on a machine that is busy with others'.
JOB_LIMIT_S = 120.0
PROBE_LIMIT_S = 120.0
# The driver takes its time to let go of a process that was killed: until then the last job is seen as a user.
TEARDOWN_S = 20.0
# All-reduces, DDP, its resume, and the same undisturbed.
NUM_JOBS_BEFORE_STRATEGIES = 4
# Those of this project besides DDP; each has a job of its own.
NUM_STRATEGIES = 6
# The file system's and the disk's checks, which are short, and the folder of all jobs that is removed.
FILES_S = 30.0

# A job's processes are killed in one go, and looked for once more.
KILL_S = GPU_KILL_WAIT_S + 2 * KILL_WAIT_S
# A check that is cancelled kills its job, then removes and keeps files.
CANCEL_S = KILL_S + FILES_S


def longest_check_s(job_limit_s: float = JOB_LIMIT_S, num_strategies: int = NUM_STRATEGIES) -> float:
    """Return how long a check takes in which every job hangs and is ended, in seconds.

    Args:
        num_strategies: those besides DDP.
    """
    num_jobs = NUM_JOBS_BEFORE_STRATEGIES + num_strategies
    return PROBE_LIMIT_S + KILL_S + num_jobs * (TEARDOWN_S + job_limit_s + KILL_S) + 2 * FILES_S


FOLDER = ".check"
MOST_KEPT = 5  # and the newest whole one on each kind of device
VERSION = 1

_CHECK_ID = re.compile(r"[0-9a-f]{12}")


class CheckFiles:
    """The paths of the checks of one runs directory."""

    def __init__(self, runs_dir: Path) -> None:
        self.folder = runs_dir / FOLDER
        self.lock = self.folder / "lock"
        self.work = self.folder / "work"
        self.results = self.folder / "results.json"

    def report(self, check_id: str) -> Path:
        """Return the file for a bug report of one check.

        Raises:
            ValueError: when the text could not be a check's id.
        """
        if not _CHECK_ID.fullmatch(check_id):
            raise ValueError(
                f"check_id is {check_id[:80]!r}, but allowed is: the id of a check of this machine"
            )
        return self.folder / f"report-{check_id}.txt"

    def read(self) -> list[dict[str, Any]]:
        """Return the checks that were kept, the newest last; none where the file is not there or damaged.

        Raises:
            ForeignFileError: when another user owns it.
        """
        try:
            found = read_json(self.results, must_be_ours=True)
        except private_files.ForeignFileError:
            raise
        except (OSError, ValueError):
            return []
        checks = found.get("checks") if isinstance(found, dict) and found.get("version") == VERSION else None
        return [check for check in checks or [] if _is_check(check)] if isinstance(checks, list) else []

    def keep(self, check: Mapping[str, Any], report: str) -> None:
        """Keep a check and its file for a bug report; the oldest go, but of what others are compared with.

        Raises:
            OSError: when they cannot be written.
            ValueError: when what lies there is another user's.
        """
        private_files.make_folder(self.folder)
        there = [*self.read(), dict(check)]
        whole = {str(old.get("device_kind")): old for old in there if old.get("state") == "done"}
        worth_keeping = [*there[-MOST_KEPT:], *whole.values()]
        kept = [old for old in there if any(old is one for one in worth_keeping)]
        write_json_atomically(self.results, {"version": VERSION, "checks": kept}, mode=0o600)
        for old in there:
            if not any(old is one for one in kept):
                plain_files.remove(self.report(old["check_id"]))
        path = self.report(check["check_id"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            with os.fdopen(private_files.open_descriptor(path, flags), "wb") as file:
                file.write(report.encode())
        except OSError:
            plain_files.remove(path)  # half a report misleads
            raise


def _is_check(value: Any) -> bool:
    """Tell whether a value is a check that can be shown and compared with."""
    if not isinstance(value, dict) or not _CHECK_ID.fullmatch(str(value.get("check_id"))):
        return False
    findings, started = value.get("findings"), value.get("started_unix_s")
    return (
        isinstance(started, int | float)
        and isinstance(findings, list)
        and all(
            isinstance(finding, dict) and isinstance(finding.get("values"), list) and "id" in finding
            for finding in findings
        )
    )
