"""A process that imports torch once, then becomes the torchrun of a run and forks its ranks.

    python -u -m trainers.engines.local.fork_server PARENT_PID [TORCHRUN_ARGUMENTS ...]

With arguments it starts a run at once (a cold start). Without them it waits for one line of JSON on standard
input, a `TorchrunRequest`: the page keeps one such process ready (`warm_pool`). Imports and forks are the
same in both cases; only the arguments arrive at a different time.

With the arguments of the literal command alone, torchrun would start one interpreter per rank, and each would
import torch. Two more options of torchrun (`--run-path`, `--start-method`) make it fork the ranks instead.
Nothing here may call CUDA: a process that was forked from one with a CUDA context cannot use the GPU, and the
driver reads CUDA_VISIBLE_DEVICES only once.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from trainers.engines.local.torchrun import JsonLine, exit_line
from trainers.files.plain_files import REPOSITORY
from trainers.machine import lifeline, threads
from trainers.machine.os_errors import explain

RANK_SCRIPT = REPOSITORY / "trainers" / "fork_worker.py"

# Modules that the first step would import. None of them starts a thread or computes at import time, which
# would be unsafe before a fork. The ranks import plug-ins, which are arbitrary code that may read its rank.
PRELOADED_MODULES = (
    "torch._dynamo",
    "trainers.worker",
    "trainers.build",
    "trainers.loop",
    "trainers.report.reporter",
    "trainers.report.telemetry",
    # Modules that torchrun, plug-ins of this project, or the first checkpoint import.
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "encodings.idna",
    "trainers.parallel.sharded",
    "trainers.parallel.shared_all_reduce",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "safetensors.torch",
    "numpy.ctypeslib",
)


@dataclass(frozen=True, kw_only=True)
class TorchrunRequest(JsonLine):
    """What a waiting fork server runs.

    Attributes:
        arguments: torchrun's arguments.
        environment: The complete environment of torchrun.
        log: Path of the file for its output; must not exist.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: str


def fork_arguments(arguments: Sequence[str]) -> list[str]:
    """Return torchrun's arguments, changed so that it forks the ranks."""
    module_index = arguments.index("-m")
    options = ["--run-path", "--start-method", "fork", str(RANK_SCRIPT)]
    return [*arguments[:module_index], *options, *arguments[module_index + 1 :]]


def main() -> None:
    """Import torch, then run torchrun in this process. The process dies with its parent."""
    lifeline.die_with_parent(int(sys.argv[1]))
    os.environ[lifeline.COMMAND_PID] = str(os.getpid())
    arguments: Sequence[str] = sys.argv[2:]
    use_one_thread_for_several_ranks(arguments)
    free_cores = threads.FreeCores(time.process_time())
    gc.disable()  # garbage collection would take a seventh of the time of these imports
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    from torch.distributed.run import main as torchrun

    keep_torchrun_from_cuda()
    skip_random_delay()
    gc.freeze()  # collections skip existing objects, so they write to no memory page that the ranks share
    gc.enable()
    if arguments:
        free_cores.note(time.process_time())
    elif (request := TorchrunRequest.from_line(sys.stdin.buffer.readline())) is not None:
        arguments = apply_request(request)
    else:
        return
    if (obstacle := fork_obstacle()) is not None:
        print(f"{obstacle}, so each rank starts its own interpreter")
    else:
        arguments = fork_arguments(arguments)
        log_every_exit()
    try:
        torchrun(arguments)
    finally:
        for rank in multiprocessing.active_children():  # in case torchrun failed between two forks
            rank.kill()


def keep_torchrun_from_cuda() -> None:
    """Patch torchrun not to count the GPUs, which it does to choose a default NUMA binding. The result is the
    same: the default is no binding (torch 2.13, `get_default_numa_options`).
    """
    from torch.distributed.launcher import api

    setattr(api, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))  # noqa: B010


def skip_random_delay() -> None:
    """Patch torchrun's rendezvous not to sleep for up to 0.3 s in its first round, which spreads many nodes.
    Patches a private function of torch 2.13; without that function, torchrun sleeps.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    if (sleep := getattr(dynamic_rendezvous, "_delay", None)) is None:
        return

    def sleep_if_fixed(seconds: float | tuple[float, float]) -> None:
        if not isinstance(seconds, tuple):
            sleep(seconds)

    setattr(dynamic_rendezvous, "_delay", sleep_if_fixed)  # noqa: B010


def use_one_thread_for_several_ranks(arguments: Sequence[str]) -> None:
    """Set OMP_NUM_THREADS before torch is imported, because OpenMP reads it then; torchrun would set it
    later.

    Without arguments the number of ranks is not known yet; a single rank sets its threads when it starts.
    """
    if not arguments or arguments[arguments.index("--nproc-per-node") + 1] != "1":
        os.environ.setdefault(threads.GIVEN, "1")


def apply_request(request: TorchrunRequest) -> Sequence[str]:
    """Adopt a request's environment and log; return torchrun's arguments."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ[lifeline.COMMAND_PID] = str(os.getpid())
    use_one_thread_for_several_ranks(request.arguments)
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    null_input = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, standard in ((null_input, 0), (log, 1), (log, 2)):
        os.dup2(source, standard)
    os.close(log)
    os.close(null_input)
    return request.arguments


def fork_obstacle() -> str | None:
    """Return why ranks cannot be forked; None if they can."""
    try:
        multiprocessing.get_context("fork").Event()
    except OSError as error:
        return f"no semaphore is available ({explain(error)})"
    return None


def log_every_exit() -> None:
    """Patch torchrun's polling: log each rank's exit code, and finish when all ranks have succeeded.

    For forked ranks torchrun reports only one exit, which may be a consequence of another rank's failure.
    torchrun also waits forever for the return value of a rank that exited without sending one.
    """
    from torch.multiprocessing.spawn import ProcessContext

    join, logged = ProcessContext.join, set()

    def poll_all(
        self: ProcessContext, timeout: float | None = None, grace_period: float | None = None
    ) -> bool:
        exit_codes = [process.exitcode for process in self.processes]
        for rank, exit_code in enumerate(exit_codes):
            if exit_code and rank not in logged:
                logged.add(rank)
                print(exit_line(rank, exit_code), flush=True)
        if timeout is not None and all(exit_code == 0 for exit_code in exit_codes):
            sys.exit(0)  # torchrun itself would wait for return values, which no rank sends
        return bool(join(self, timeout, grace_period))

    ProcessContext.join = poll_all  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
