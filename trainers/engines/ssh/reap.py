"""Kills all processes of one start of a run on this host; prints their number.

python -m trainers.engines.ssh.reap TAG

Finds processes by the tag in their environment, and the descendants of these processes, because a rank that
has changed its title may no longer expose its environment.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import psutil

from trainers.engines.ssh.scripts import TAG

KILL_LIMIT_S = 10.0
POLL_S = 0.05


def main() -> None:
    """Kill processes until none remains; exit with 1 if some cannot be killed."""
    parser = argparse.ArgumentParser(description="End all processes of a start of a run on this host.")
    parser.add_argument("tag")
    tag = parser.parse_args().tag
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + KILL_LIMIT_S
    while remaining := find_processes(tag):
        if time.monotonic() > deadline:
            sys.exit(
                f"processes that cannot be killed: {', '.join(str(process.pid) for process in remaining)}"
            )
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        killed.update(remaining)
        time.sleep(POLL_S)
    print(len(killed))


def find_processes(tag: str) -> list[psutil.Process]:
    """Return the current user's live processes with a tag, and their descendants.

    Parents come first: if a child were killed before its parent, the parent could continue with its next
    command.
    """
    processes: dict[psutil.Process, None] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TAG) == tag:
                processes.update(dict.fromkeys([process, *process.children(recursive=True)]))
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
