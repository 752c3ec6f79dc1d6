"""Ties a process's life to its parent's: the kernel kills it when the parent ends (Linux only).

    python -m trainers.machine.lifeline PARENT_PID COMMAND ...

As a program it becomes the command, which then cannot outlive that parent, however the parent ends. A process
with several threads starts its children this way, because code between its fork and exec may hang. The
command's own children find its process id in their environment, so that they can detect that it has already
ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

COMMAND_PID = "TRAINERS_COMMAND_PID"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def bound(*command: str, python: str = sys.executable) -> list[str]:
    """Return the command line of a program that the kernel kills when this process ends.

    Args:
        python: The interpreter that runs this module.
    """
    return [python, "-m", "trainers.machine.lifeline", str(os.getpid()), *command]


def die_with_parent(parent_pid: int | None = None) -> None:
    """Make the kernel kill this process when the thread of its parent that started it ends.

    Args:
        parent_pid: the expected parent; if it is gone already, this process ends immediately.
    """
    if not sys.platform.startswith("linux"):
        return
    parent_pid = os.getppid() if parent_pid is None else parent_pid
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (Linux only), so that none is lost track of."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def parent_by_name() -> int | None:
    """Return the process id of the lifeline command that is this process's parent, or None."""
    named = os.environ.get(COMMAND_PID, "")
    return int(named) if named.isdecimal() else None


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.environ[COMMAND_PID] = str(os.getpid())
    os.execvp(sys.argv[2], sys.argv[2:])  # PR_SET_PDEATHSIG is preserved across exec
