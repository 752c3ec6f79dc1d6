"""What both halves need to know of torchrun: how to start it, and what its last summary says."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

_SUMMARY_RANK = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(?P<code>-?\d+)"
)

_TOLD_END = re.compile(r"^rank (?P<rank>\d+) ended with exit code (?P<code>-?\d+)$", re.MULTILINE)
_FIRST_FAILURE = "Root Cause (first observed failure):"


def torchrun_program() -> list[str]:
    """Return the beginning of a command that starts this interpreter's torchrun."""
    beside_python = Path(sys.executable).with_name("torchrun")
    return [str(beside_python)] if beside_python.exists() else [sys.executable, "-m", "torch.distributed.run"]


def torchrun_options(log_dir: Path) -> Mapping[str, str]:
    """Return options for the environment: so the command itself stays the literal one."""
    # One machine: a host name that does not resolve (offline, VPN) must not matter.
    return {"PET_LOG_DIR": str(log_dir), "PET_LOCAL_ADDR": "127.0.0.1"}


def told_end(rank: int, exit_code: int) -> str:
    """Return the line of the log that tells of a rank's end."""
    return f"rank {rank} ended with exit code {exit_code}"


def rank_exit_codes(output: str) -> dict[int, int]:
    """Return the exit code of each rank that a line or the summary names; negative is a signal."""
    matches = [*_SUMMARY_RANK.finditer(output), *_TOLD_END.finditer(output)]
    return {int(match["rank"]): int(match["code"]) for match in matches}


def first_failed_rank(output: str) -> int | None:
    """Return the rank that the last summary names as the first to fail."""
    _, found, summary = output.rpartition(_FIRST_FAILURE)
    match = _SUMMARY_RANK.search(summary) if found else None
    return None if match is None else int(match["rank"])
