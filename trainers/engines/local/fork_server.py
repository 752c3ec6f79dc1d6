"""torchrun whose ranks are forked from a process that has imported torch, so that they start immediately.

    python -u -m trainers.engines.local.fork_server PARENT_PID TORCHRUN_ARGUMENTS ...

The arguments are those of the literal command, with which torchrun would start one interpreter per rank, and
each would import torch. Two options of torchrun (`--run-path`, `--start-method`) make it fork the ranks
instead. Forking is limited to machines without a GPU: its effect on a GPU's driver has not been measured.

Measured for two ranks (benchmarks/LOG.md, `startup`): 0.75 × the start-up time of bare torchrun, against
1.44 × with one interpreter per rank.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from trainers.engines.local.torchrun import told_end
from trainers.files.plain_files import REPOSITORY
from trainers.machine import hardware, lifeline, threads
from trainers.machine.os_errors import explain

FIRST_OF_A_RANK = REPOSITORY / "trainers" / "warm" / "fork_worker.py"


# Modules that the first step would import. None of them starts a thread or computes at import time, which
# would be unsafe before a fork. Plugins are arbitrary code that may ask for its rank: the ranks import them.
NEEDED_BY_ANY_RUN = (
    "torch._dynamo",
    "trainers.worker",
    "trainers.build",
    "trainers.loop",
    "trainers.report.reporter",
    "trainers.report.telemetry",
)

# torchrun's own variable. Setting it to another method turns forking off.
START_METHOD = "PET_START_METHOD"


def can_fork() -> bool:
    """True if ranks may be forked: on Linux, if the machine cannot have a GPU."""
    is_wanted = os.environ.get(START_METHOD, "fork") == "fork"
    return is_wanted and sys.platform.startswith("linux") and not hardware.may_have_gpu()


def forking(arguments: Sequence[str]) -> list[str]:
    """Return torchrun's arguments, changed so that it forks the ranks."""
    module = arguments.index("-m")
    options = ["--run-path", "--start-method", "fork", str(FIRST_OF_A_RANK)]
    return [*arguments[:module], *options, *arguments[module + 1 :]]


def main() -> None:
    """Run torchrun in this process, which dies with the process that started it."""
    lifeline.die_with_parent(int(sys.argv[1]))
    os.environ[lifeline.COMMAND_PID] = str(os.getpid())
    arguments = sys.argv[2:]
    # torchrun sets this for its ranks, but OpenMP reads it at the first import of torch, which happens here.
    if arguments[arguments.index("--nproc-per-node") + 1] != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    free_cores = threads.FreeCores(time.process_time())
    gc.disable()  # garbage collection would take a seventh of the time of these imports
    if (obstacle := why_not()) is not None:
        print(f"{obstacle}, so each rank starts its own interpreter")
    else:
        for name in NEEDED_BY_ANY_RUN:
            importlib.import_module(name)
        gc.freeze()  # collections skip what exists now: no page is written, so ranks keep sharing it
        arguments = forking(arguments)
        note_every_end()
    gc.enable()
    free_cores.note(time.process_time())
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    finally:
        for rank in multiprocessing.active_children():  # in case torchrun failed between two forks
            rank.kill()


def why_not() -> str | None:
    """Return why ranks cannot be forked, as far as only this process can find out; None if they can."""
    import torch

    try:
        multiprocessing.get_context("fork").Event()
    except OSError as error:
        return f"no semaphore is available ({explain(error)})"
    return "there is a GPU" if torch.cuda.is_available() else None


def note_every_end() -> None:
    """Patch torchrun's polling of its ranks: log each rank's exit code, and finish when all have succeeded.

    For forked ranks torchrun reports the exit of only one, which may be a rank that failed because another
    one had. And it waits forever for the return value of a rank that exited without sending one.
    """
    from torch.multiprocessing.spawn import ProcessContext

    join, noted = ProcessContext.join, set()

    def poll_all(
        self: ProcessContext, timeout: float | None = None, grace_period: float | None = None
    ) -> bool:
        ends = [process.exitcode for process in self.processes]
        for rank, exit_code in enumerate(ends):
            if exit_code and rank not in noted:
                noted.add(rank)
                print(told_end(rank, exit_code), flush=True)
        if timeout is not None and all(exit_code == 0 for exit_code in ends):
            sys.exit(0)  # torchrun itself would wait for return values, which no rank sends
        return bool(join(self, timeout, grace_period))

    ProcessContext.join = poll_all  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
