"""Ties a process's life to its parent's: the kernel kills it when the parent ends.

    python -m trainers.machine.lifeline PARENT_PID COMMAND ...

As a program it becomes the command, which then cannot outlive that parent, however the parent ends. A process
with several threads starts its children this way, because code between its fork and exec may hang. The
command's own children find its process id in their environment, so that they can detect that it has already
ended. On systems whose kernel does not do that (all but Linux), a thread or a process polls the parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from trainers.machine import facilities

COMMAND_PID = "TRAINERS_COMMAND_PID"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Without the kernel's help, a process ends this much later than its parent, at most.
POLL_S = 0.1
_MOST_DESCRIPTORS = 4096


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
    parent_pid = os.getppid() if parent_pid is None else parent_pid
    if not facilities.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        threading.Thread(target=_follow_parent, args=(parent_pid,), name="lifeline", daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(1)


def _follow_parent(parent_pid: int) -> None:
    """Kill this process when it gets another parent."""
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch_from_outside(parent_pid: int) -> None:
    """Start a process that kills this one when it gets another parent: threads end when it becomes a command.

    The watching process ends with this one. It is not its child, because this one may wait for its children.
    """
    import psutil  # needed on other systems only

    command = psutil.Process()
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, _MOST_DESCRIPTORS)  # a reader of the command's output waits for its end
        with contextlib.suppress(psutil.NoSuchProcess):
            while command.is_running() and command.status() != psutil.STATUS_ZOMBIE:
                if command.ppid() != parent_pid:
                    command.kill()
                time.sleep(POLL_S)
    os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (Linux only), so that none is lost track of."""
    facilities.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def parent_by_name() -> int | None:
    """Return the process id of the lifeline command that is this process's parent, or None."""
    named = os.environ.get(COMMAND_PID, "")
    return int(named) if named.isdecimal() else None


if __name__ == "__main__":
    if facilities.are_available():
        die_with_parent(int(sys.argv[1]))
    else:
        _watch_from_outside(int(sys.argv[1]))
    os.environ[COMMAND_PID] = str(os.getpid())
    os.execvp(sys.argv[2], sys.argv[2:])  # PR_SET_PDEATHSIG is preserved across exec
