"""Fork the ranks of runs and scripts from one process that has imported torch, to save the import time.

python -m tests.integration.as_code_ranks

Each line on stdin is an object with `folder`, `num_ranks`, `environment`, and `what`: "run" trains the run
directory `folder/run`, "script" executes `folder/train.py` as torchrun does. The answer is the list of exit
codes. The output of the ranks is in `folder/<what>_<rank>.log`.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed.optim
import torch.distributed.tensor.parallel
import torch.utils.data
from torch.distributed import fsdp  # noqa: F401 - what scripts and strategies import

import trainers.build
import trainers.loop
import trainers.worker
from trainers import registry
from trainers.contract.rundir import RunDirectory
from trainers.engines.local.torchrun import STORE


def main() -> None:
    """Serve requests until stdin ends."""
    registry.discover_all()
    for line in sys.stdin:
        asked = json.loads(line)
        asked["environment"] |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        processes = [_fork(asked, rank) for rank in range(asked["num_ranks"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        print(json.dumps(codes), flush=True)


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
        if what == "run":
            os.environ[STORE] = str(folder / "store")
            trainers.worker.run_rank(RunDirectory(folder / "run"), None)
        else:
            runpy.run_path("train.py", run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - reported before exit
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
