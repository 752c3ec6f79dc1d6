"""What a rank that torchrun has forked does first: it becomes what one that was started anew would be.

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

STANDARD_STREAMS = 3


def main() -> None:
    """Be a rank, by the `main` of the module named."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # torchrun's own handlers are none of a rank's business
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method(None, force=True)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # else all ranks would draw the same where a plugin draws without a seed
    keep_for_oneself(pipes_to_torchrun())
    sys.argv = sys.argv[1:]
    try:
        exit_code = importlib.import_module(sys.argv[0]).main()
    except KeyboardInterrupt:
        worker.end_at_once(1)  # torch would take it for a success
    worker.end(exit_code)


def pipes_to_torchrun() -> dict[int, tuple[int, int]]:
    """Return the pipes this process has from torchrun, which knows by one of them whether it lives."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists
            about = os.fstat(int(name))
            if int(name) >= STANDARD_STREAMS and stat.S_ISFIFO(about.st_mode):
                found[int(name)] = (about.st_dev, about.st_ino)
    return found


def keep_for_oneself(pipes: dict[int, tuple[int, int]]) -> None:
    """Let no process that this one forks hold them too: torchrun would take that for the rank."""

    def close_all() -> None:
        for number, (device, inode) in pipes.items():
            with contextlib.suppress(OSError):  # closed meanwhile
                about = os.fstat(number)
                if (about.st_dev, about.st_ino) == (device, inode):
                    os.close(number)

    os.register_at_fork(after_in_child=close_all)


if __name__ == "__main__":
    main()
