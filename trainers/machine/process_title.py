"""What a rank is called outside, by ps, top, nvidia-smi and the page's list of who uses a GPU (Linux only).

The kernel shows a process's command line as it stands in the process's own memory. Where its last byte is not
zero, a title was written over it, and the kernel shows that up to its end (Linux, fs/proc/base.c,
`get_mm_proctitle`): so setproctitle does it, too.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

# The first word of our titles.
OURS = "ddp:"

_PR_SET_NAME = 15
# Counted from the third field of /proc/PID/stat; the second one may have blanks in it.
_ARG_START, _ARG_END = 45, 46
_END_OF_NAME = b") "
MAX_SHOWN = 100


def show_rank(run_id: str | None, rank: int) -> None:
    """Call this process a rank of a run (None: of one that nobody has chosen yet), from the main thread.

    Where the title is longer than the command line was, the run's name is cut short.
    """
    if not sys.platform.startswith("linux"):
        return
    tail = f" rank {rank}".encode()
    # No blank: Slurm's proctrack/linuxproc reads /proc/PID/stat up to the first one, and would lose the rank:
    # those of a suspended job trained on.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"ddp-rank-{rank}".encode(), 0, 0, 0)
    begin, end = _command_line_place()
    room = end - begin - 2  # a zero behind the title, and the last byte
    if room < len(tail):
        return  # this system does not say where it is
    head = f"{OURS} {run_id or 'waiting for a run,'}".encode()[: room - len(tail)]
    ctypes.memmove(begin, (head + tail).ljust(room + 1, b"\0") + b".", end - begin)


def title_of(command_line: Sequence[str]) -> str | None:
    """Return what a rank of a run calls itself; None for any other process."""
    return " ".join(command_line)[:MAX_SHOWN] if command_line and command_line[0] == OURS else None


def _command_line_place() -> tuple[int, int]:
    """Return where this process's command line begins and ends in its memory; (0, 0) where that is hidden."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(_END_OF_NAME)[2].split()
    return int(fields[_ARG_START]), int(fields[_ARG_END])
