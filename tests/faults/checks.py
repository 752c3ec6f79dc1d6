"""Invariants after a fault, checked on a run's directory and on the system's processes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.harness import belongs_to
from trainers.contract.rundir import RunDirectory

# PID and creation time. A process belongs to a run if the run's directory is on its command line, or if it is
# a child of such a process.
Identity = tuple[int, float]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Events read from a run so far: their number, size and SHA-256 sum."""

    num_events: int
    size_bytes: int
    sha256: str


def lost_events(run: RunDirectory, seen: Seen) -> int:
    """Count the events that were read but have since disappeared or changed, and gaps in the numbering."""
    try:
        data = run.events.read_bytes()
    except FileNotFoundError:
        return seen.num_events
    lines = data.splitlines(keepends=True)
    same = hashlib.sha256(data[: seen.size_bytes]).hexdigest() == seen.sha256
    lost = 0 if same else max(1, seen.num_events - len(lines))
    return lost + _breaks(lines)


def _breaks(lines: list[bytes]) -> int:
    """Count the complete lines whose `seq` differs from the expected number."""
    breaks, expected = 0, 0
    for line in lines:
        if not line.endswith(b"\n"):
            continue  # incomplete line
        try:
            seq = json.loads(line)["seq"]
        except (ValueError, LookupError, TypeError):
            seq = None
        if seq != expected:
            breaks += 1
        expected = seq + 1 if isinstance(seq, int) else expected + 1
    return breaks


def bad_checkpoints(run: RunDirectory) -> list[str]:
    """Return one message per listed checkpoint file whose size or SHA-256 sum is wrong.

    Parses the manifests directly, so that the code under test does not check itself.
    """
    found = []
    for item in run.list_checkpoints():
        manifest = json.loads((item.path / "manifest.json").read_text(encoding="utf-8"))
        if not manifest["files"]:
            found.append(f"step {item.step}: an empty manifest")
        found += [
            f"step {item.step}: {name} is not what was saved"
            for name, about in manifest["files"].items()
            if not _is_as_saved(item.path / name, about)
        ]
    return found


def _is_as_saved(path: Path, about: dict[str, object]) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return len(data) == about["size_bytes"] and hashlib.sha256(data).hexdigest() == about["sha256"]


def processes_on(run: RunDirectory) -> set[Identity]:
    """Return the live processes with the run's directory on the command line, and their children."""
    found: set[Identity] = set()
    for process in psutil.process_iter():
        try:
            if not belongs_to(process, run):
                continue
            for member in (process, *process.children(recursive=True)):
                if member.status() != psutil.STATUS_ZOMBIE:
                    found.add((member.pid, member.create_time()))
        except psutil.Error:
            continue
    return found


def still_alive(known: set[Identity]) -> set[Identity]:
    """Return the known processes that are still alive. A reused PID does not count."""
    alive = set()
    for pid, started in known:
        try:
            process = psutil.Process(pid)
            if process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
                alive.add((pid, started))
        except psutil.Error:
            continue
    return alive
