"""Fork the ranks of runs and scripts from one process that has imported torch, to save the import time.

python -m tests.integration.as_code_ranks

Each line on stdin is an object with `folder`, `num_ranks`, `environment`, `arguments`, `what`: "run" trains
the run `folder/run`, "script" executes `folder/train.py` as torchrun does, "watched" as the run `folder/run`.
The answer is the list of exit codes. The output of the ranks is in `folder/<what>_<rank>.log`. If `quiet_s`
is a number, watched ranks are killed when one has failed, as by torchrun, or when none notes anything for
this time.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed.optim
import torch.distributed.tensor.parallel
import torch.utils.data
from torch.distributed import distributed_c10d, fsdp  # noqa: F401 - what scripts and strategies import

import trainers.build
import trainers.loop
import trainers.worker
from tests.harness import END_TIMEOUT_S, POLL_S, TIMEOUT_SCALE
from trainers import registry
from trainers.contract.rundir import RunDirectory
from trainers.watch import __main__ as watch
from trainers.watch import details, recorder, spool  # noqa: F401 - what watched scripts import
from trainers.watch.settings import STORE


def main() -> None:
    """Serve requests until stdin ends."""
    registry.discover_all()
    for line in sys.stdin:
        asked = json.loads(line)
        asked["environment"] |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        processes = [_fork(asked, rank) for rank in range(asked["num_ranks"])]
        print(json.dumps(_exit_codes(processes, Path(asked["folder"]), asked["quiet_s"])), flush=True)


def _exit_codes(processes: list[int], folder: Path, quiet_s: float | None) -> list[int]:
    """Wait for the ranks and return their exit codes; kill those that have not ended in time."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + END_TIMEOUT_S * TIMEOUT_SCALE
    num_notes = -1
    while len(codes) < len(processes):
        if quiet_s is not None and (now := _num_notes(folder)) > num_notes:
            num_notes, deadline = now, time.monotonic() + quiet_s
        if quiet_s is not None and any(codes.values()):
            deadline = 0.0
        for process in set(processes) - codes.keys():
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
        time.sleep(POLL_S)
    return [codes[process] for process in processes]


def _num_notes(folder: Path) -> int:
    """Return the number of notes of all watched ranks, without those that a thread writes every second."""
    paths = (folder / "run" / spool.FOLDER).glob("notes_*")
    return sum(b'"kind": "sample"' not in line for path in paths for line in path.read_bytes().splitlines())


def _fork(asked: dict[str, Any], rank: int) -> int:
    process = os.fork()
    if process:
        return process
    folder, num_ranks, what = Path(asked["folder"]), str(asked["num_ranks"]), asked["what"]
    code = 1
    try:
        log = os.open(folder / f"{what}_{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        os.environ |= {"CUDA_VISIBLE_DEVICES": ""}  # for the device "auto"
        os.environ |= asked["environment"] | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        # Both use one thread: the number of threads changes the order of summation and depends on the
        # machine.
        os.environ |= {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "OMP_NUM_THREADS": "1"}
        torch.set_num_threads(1)
        if what != "run":
            _keep_process_group()
        if what != "script":
            os.environ[STORE] = str(folder / "store")
        if what == "run":
            trainers.worker.run_rank(RunDirectory(folder / "run"), None)
        elif what == "watched":
            sys.argv = ["trainers.watch", "--run-dir", "run", "train.py", *asked["arguments"]]
            watch.main()  # ends this process
        else:
            sys.argv = ["train.py", *asked["arguments"]]
            runpy.run_path("train.py", run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - reported before exit
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _keep_process_group() -> None:
    """Keep the process group alive after `destroy_process_group`, until this process exits.

    Otherwise a rank can wait forever: the destructor of ProcessGroupGloo takes the group's mutex while it has
    the GIL, and gloo's thread, which has the mutex, needs the GIL to release its last all-reduce. Seen with
    torch 2.13 at a load of 10, in a script whose model is released when its `main` returns.
    """
    destroy = distributed_c10d.destroy_process_group
    kept = []

    def destroy_but_keep(group: Any = None) -> None:
        kept.append(torch.distributed.group.WORLD)
        destroy(group)

    torch.distributed.destroy_process_group = distributed_c10d.destroy_process_group = destroy_but_keep


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
