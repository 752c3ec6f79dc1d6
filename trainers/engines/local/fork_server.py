"""torchrun, with everything its ranks import already imported: each is forked from it and starts at once.

    python -u -m trainers.engines.local.fork_server PARENT_PID TORCHRUN_ARGUMENTS ...

The arguments are those of the literal command. torchrun would start an interpreter for each rank, which
imports torch for itself; here it is asked to fork them, by options of its own (`--run-path`,
`--start-method`). On CPU ranks only: what a GPU's driver makes of a fork has not been measured.
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


# What the first step would import; none of it starts a thread or computes. Plugins are left to the ranks:
# they are anybody's code, and may ask for their rank.
NEEDED_BY_ANY_RUN = (
    "torch._dynamo",
    "trainers.worker",
    "trainers.build",
    "trainers.loop",
    "trainers.report.reporter",
    "trainers.report.telemetry",
)

# torchrun's own variable: set to another method, it turns forking off.
START_METHOD = "PET_START_METHOD"


def can_fork() -> bool:
    """Tell whether ranks may be forked here: on Linux, where no GPU can be in the game."""
    is_wanted = os.environ.get(START_METHOD, "fork") == "fork"
    return is_wanted and sys.platform.startswith("linux") and not hardware.may_have_gpu()


def forking(arguments: Sequence[str]) -> list[str]:
    """Return torchrun's arguments that fork the ranks which the given ones would start anew."""
    module = arguments.index("-m")
    options = ["--run-path", "--start-method", "fork", str(FIRST_OF_A_RANK)]
    return [*arguments[:module], *options, *arguments[module + 1 :]]


def main() -> None:
    """Be torchrun, and end with the process that started this one."""
    lifeline.die_with_parent(int(sys.argv[1]))
    os.environ[lifeline.COMMAND_PID] = str(os.getpid())
    arguments = sys.argv[2:]
    # torchrun sets this for its ranks, but what they share is loaded before, with the first import of torch.
    if arguments[arguments.index("--nproc-per-node") + 1] != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    free_cores = threads.FreeCores(time.process_time())
    gc.disable()  # looking for garbage takes a seventh of the time of these imports
    if (obstacle := why_not()) is not None:
        print(f"{obstacle}, so each rank starts an interpreter of its own")
    else:
        for name in NEEDED_BY_ANY_RUN:
            importlib.import_module(name)
        gc.freeze()  # what is there is never looked at again, so that the ranks go on sharing it
        arguments = forking(arguments)
        note_every_end()
    gc.enable()
    free_cores.note(time.process_time())
    from torch.distributed.run import main as torchrun

    try:
        torchrun(arguments)
    finally:
        for rank in multiprocessing.active_children():  # when torchrun fell between two forks
            rank.kill()


def why_not() -> str | None:
    """Say what stands in the way of forking that is seen only here."""
    import torch

    try:
        multiprocessing.get_context("fork").Event()
    except OSError as error:
        return f"no semaphore can be had ({explain(error)})"
    return "there is a GPU" if torch.cuda.is_available() else None


def note_every_end() -> None:
    """Have torchrun's own look at its ranks write down how each has ended, and see when all have left.

    Of ranks it forked torchrun tells the end of one alone, which may be one that only missed the first;
    and it waits for ever for the word of a rank that left without any.
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
            sys.exit(0)  # without a word that all is well: those would wait to be let go
        return bool(join(self, timeout, grace_period))

    ProcessContext.join = poll_all  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
