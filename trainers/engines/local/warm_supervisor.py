"""A supervisor without a run yet: holds warm ranks until the page assigns a run.

    python -m trainers.engines.local.warm_supervisor FOLDER --nproc-per-node N

The order arrives as one line on standard input. If standard input closes first, the page has exited or does
not need these ranks any more, and this process exits with all of them.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import sys
from pathlib import Path

from trainers.contract.rundir import RunDirectory
from trainers.engines.local import supervisor
from trainers.engines.local.torchrun_process import WarmTorchrun
from trainers.engines.local.warm_pool import Order
from trainers.files import private_files
from trainers.files.plain_files import open_to_append
from trainers.machine import lifeline, os_errors, threads
from trainers.machine.processes import ProcessTree

POLL_S = 0.5
LOCK = "lock"


def main() -> None:
    """Hold warm ranks until a run is assigned, then supervise it; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Keep warm workers ready for a run.")
    parser.add_argument("folder", type=Path, help="the folder for their logs until then")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    options = parser.parse_args()
    folder = options.folder.resolve()
    private_files.begin(folder.parent.parent)
    folder.mkdir(parents=True)
    # The lock shows that this process lives: the page removes folders whose lock is free.
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Before torchrun starts, so that no rank can escape `ProcessTree` when its parent dies.
    lifeline.adopt_orphans()
    warm = WarmTorchrun(folder, options.nproc_per_node)
    order = wait_for_order(warm)
    if order is None:
        ProcessTree(os.getpid(), with_root=False).kill()
        warm.put_away(None)
        return
    run = RunDirectory(Path(order.run_dir))
    os.environ.update(order.environment)
    redirect_output(run)
    sys.exit(supervisor.supervise(run, order.resume_step, order.ticket, warm))


def wait_for_order(warm: WarmTorchrun) -> Order | None:
    """Wait for the order; return None if the page has exited or the ranks have ended."""
    free_cores = threads.FreeCores()
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        free_cores.note()
        if warm.process.poll() is not None:
            return None
    # If the ranks end at this moment, the supervisor starts others.
    return Order.from_line(sys.stdin.buffer.readline())


def redirect_output(run: RunDirectory) -> None:
    """Redirect stdout and stderr to the run's log: this process started before the run existed."""
    run.logs.mkdir(exist_ok=True)
    fd = open_to_append(run.logs / "supervisor.log")
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    os_errors.keep_going_without_log()


if __name__ == "__main__":
    main()
