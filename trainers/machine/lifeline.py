"""Makes a process end with its parent: the kernel kills the process when the parent ends.

    python -m trainers.machine.lifeline PARENT_PID COMMAND ...

As a program it executes the command, which then cannot outlive the parent. A process with several threads
starts its children this way, because code between its fork and exec may hang. The command's children find the
command's process id in their environment, so they can detect that the command has already ended. Only Linux's
kernel kills a process with its parent; on other systems, a thread or a process polls the parent.
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
# Polling interval on systems other than Linux: the maximum time by which a process outlives its parent.
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
    """Start a process that kills this process when it gets another parent. A thread would end at the exec of
    the command. The watching process ends with this process. It is not a child of this process, which may
    wait for all its children.
    """
    import psutil  # needed on other systems only

    command = psutil.Process()
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    if os.fork() == 0:
        os.setsid()
        # otherwise a reader of the command's output would wait for this process
        os.closerange(0, _MOST_DESCRIPTORS)
        with contextlib.suppress(psutil.NoSuchProcess):
            while command.is_running() and command.status() != psutil.STATUS_ZOMBIE:
                if command.ppid() != parent_pid:
                    command.kill()
                time.sleep(POLL_S)
    os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (Linux only), so that `ProcessTree` finds them."""
    facilities.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def parent_by_name() -> int | None:
    """Return the process id of the lifeline command that is this process's parent, or None."""
    pid_text = os.environ.get(COMMAND_PID, "")
    return int(pid_text) if pid_text.isdecimal() else None


if __name__ == "__main__":
    if facilities.are_available():
        die_with_parent(int(sys.argv[1]))
    else:
        _watch_from_outside(int(sys.argv[1]))
    os.environ[COMMAND_PID] = str(os.getpid())
    os.execvp(sys.argv[2], sys.argv[2:])  # PR_SET_PDEATHSIG is preserved across exec
