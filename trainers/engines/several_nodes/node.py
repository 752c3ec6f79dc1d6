"""What an engine starts once on each node of a run: torchrun with this node's ranks.

    python -m trainers.engines.several_nodes.node RUN_DIR --engine NAME --handle JSON --node-rank K
        --num-nodes N --head HOST --port PORT [--resume STEP]

Node 0 is the run's supervisor: it has the lock and keeps `status.json`. Each node kills its own ranks when it
ends, whatever ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle
from trainers.engines.local import torchrun_process
from trainers.engines.local.orders import COMMANDS_OFFSET
from trainers.engines.local.supervisor import Supervisor
from trainers.engines.local.torchrun import LOG_DIR
from trainers.engines.local.torchrun_process import TorchrunProcess
from trainers.engines.several_nodes.meeting import Node
from trainers.files import private_files
from trainers.machine import lifeline
from trainers.machine.processes import ProcessTree

POLL_S = 0.1
# The engine holds the lock until it has written down which job this is.
LOCK_WITHIN_S = 30.0


def main() -> None:
    """Run this node's part to its end; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Run one node's part of a training job.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--handle", required=True, type=json.loads, metavar="JSON")
    parser.add_argument("--node-rank", required=True, type=int)
    parser.add_argument("--num-nodes", required=True, type=int)
    parser.add_argument("--head", required=True, metavar="HOST")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--resume", type=int, metavar="STEP")
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    node = Node(rank=options.node_rank, num_nodes=options.num_nodes, head=options.head, port=options.port)
    private_files.begin(run.path.parent)
    if node.is_head:
        sys.exit(supervise(run, node, options.resume, options.engine, options.handle))
    sys.exit(follow(run, node, options.resume))


def supervise(run: RunDirectory, node: Node, resume_step: int | None, engine: str, handle: Handle) -> int:
    """Own the run and run node 0's part of it; return torchrun's exit code.

    Raises:
        ValueError: when another process owns it.
    """

    def start(run: RunDirectory, config: Config, step: int | None, offset: int) -> TorchrunProcess:
        return start_torchrun(run, config, node, step, offset)

    lock = _wait_for_lock(run)
    try:
        run.remove_half_written_status()
        return Supervisor(run, resume_step, start=start, job=(engine, handle)).run_to_end()
    finally:
        os.close(lock)


def follow(run: RunDirectory, node: Node, resume_step: int | None) -> int:
    """Run another node's part; return torchrun's exit code."""
    lifeline.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    tree = ProcessTree(os.getpid(), with_root=False)
    try:
        torchrun = start_torchrun(run, run.read_config(), node, resume_step, None).process
        while torchrun.poll() is None:
            tree.update()
            time.sleep(POLL_S)
        return torchrun.returncode
    finally:
        tree.kill()


def start_torchrun(
    run: RunDirectory, config: Config, node: Node, resume_step: int | None, commands_offset: int | None
) -> TorchrunProcess:
    """Start torchrun on this node.

    Raises:
        OSError: when it cannot be started, or the head cannot be reached.
    """
    run.logs.mkdir(exist_ok=True)
    ending = "" if node.is_head else f"_{node.rank}"
    log = run.logs / f"torchrun{ending}.log"
    details = run.logs / f"{torchrun_process.DETAILS}{ending}"
    arguments = node.torchrun_arguments(config, run.path, resume_step)
    variables = {LOG_DIR: str(details), **node.environment()}
    if commands_offset is not None:
        variables[COMMANDS_OFFSET] = str(commands_offset)
    process = torchrun_process.launch(arguments, log, details, None, variables)
    return TorchrunProcess(process=process, details=details, board=None)


def _wait_for_lock(run: RunDirectory) -> int:
    deadline = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            return run.acquire_lock()
        except ValueError:
            if time.monotonic() > deadline:
                raise


if __name__ == "__main__":
    main()
