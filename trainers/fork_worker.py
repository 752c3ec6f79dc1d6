"""Main of a rank that torchrun has forked: resets the process to the state of a newly started one.

fork_worker.py MODULE ARGUMENTS ...
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import stat
import sys

from trainers import worker
from trainers.machine import facilities

STANDARD_STREAMS = 3


def main() -> None:
    """Reset inherited state, then run `main` of the module in argv."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # inherited handlers are torchrun's own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method(None, force=True)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # else unseeded plug-ins would draw the same numbers on all forked ranks
    close_in_forked_processes(pipes_to_torchrun())
    sys.argv = sys.argv[1:]
    try:
        exit_code = importlib.import_module(sys.argv[0]).main()
    except KeyboardInterrupt:
        worker.end_at_once(1)  # torch treats a KeyboardInterrupt of a forked rank as success
    worker.end(exit_code)


def pipes_to_torchrun() -> dict[int, tuple[int, int]]:
    """Return the (device, inode) of each pipe inherited from torchrun, by file descriptor.

    torchrun detects the end of a rank when the last holder of such a pipe closes it.
    """
    pipes = {}
    for descriptor in facilities.own_descriptors():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is already closed
            file_status = os.fstat(descriptor)
            if descriptor >= STANDARD_STREAMS and stat.S_ISFIFO(file_status.st_mode):
                pipes[descriptor] = (file_status.st_dev, file_status.st_ino)
    return pipes


def close_in_forked_processes(pipes: dict[int, tuple[int, int]]) -> None:
    """Close the pipes in forks of this rank, which torchrun would otherwise take for the rank."""

    def close_all() -> None:
        for descriptor, (device, inode) in pipes.items():
            with contextlib.suppress(OSError):  # already closed
                file_status = os.fstat(descriptor)
                if (file_status.st_dev, file_status.st_ino) == (device, inode):
                    os.close(descriptor)

    os.register_at_fork(after_in_child=close_all)


if __name__ == "__main__":
    main()
