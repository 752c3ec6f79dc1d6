"""What an engine starts once on each node of a run: torchrun with this node's ranks.

    python -m trainers.engines.several_nodes.node RUN_DIR --engine NAME --handle JSON --start NAME
        --node-rank K --num-nodes N --head HOST --port PORT [--resume STEP] [--restart K] [--restarts-left K]

Node 0 is the run's supervisor: it has the lock and keeps `status.json`. Each node kills its own ranks when it
ends, whatever ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle
from trainers.engines.local import torchrun_process
from trainers.engines.local.diagnosis import hangs
from trainers.engines.local.diagnosis.ranks import LocalRanks
from trainers.engines.local.orders import COMMANDS_OFFSET
from trainers.engines.local.supervisor import Supervisor
from trainers.engines.local.torchrun import LOG_DIR
from trainers.engines.local.torchrun_process import TorchrunProcess
from trainers.engines.several_nodes import reports, restarts
from trainers.engines.several_nodes.meeting import Node
from trainers.engines.several_nodes.ranks_of_nodes import (
    COMES_WITHIN_S,
    LOOK_EVERY_S,
    HeardNode,
    RanksOfNodes,
)
from trainers.engines.several_nodes.reports import NodesFolder, Reporter
from trainers.files import private_files
from trainers.machine import lifeline, os_errors
from trainers.machine.processes import ProcessTree

POLL_S = 0.1
# The engine holds the lock until it has written down which job this is.
LOCK_WITHIN_S = 30.0
# When all has gone well: their torchruns end at about the same time by themselves.
OTHERS_END_WITHIN_S = 10.0


def main() -> None:
    """Run this node's part to its end; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Run one node's part of a training job.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--handle", required=True, type=json.loads, metavar="JSON")
    parser.add_argument("--start", required=True, metavar="NAME", help="of this start of the run; used once")
    parser.add_argument("--node-rank", required=True, type=int)
    parser.add_argument("--num-nodes", required=True, type=int)
    parser.add_argument("--head", required=True, metavar="HOST")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--resume", type=int, metavar="STEP")
    parser.add_argument("--restart", type=int, default=0, help="how often the engine has started it again")
    parser.add_argument("--restarts-left", type=int, default=0, help="how often it still would")
    options = parser.parse_args()
    os_errors.keep_going_without_log()
    run = RunDirectory(options.run_dir.resolve())
    node = Node(rank=options.node_rank, num_nodes=options.num_nodes, head=options.head, port=options.port)
    private_files.begin(run.path.parent)
    folder = NodesFolder(run, options.start)
    if options.restart and restarts.has_ended(run):
        sys.exit(0)  # it had its last word before its engine could hear of it
    if not node.is_head:
        sys.exit(follow(run, node, folder, options.resume, restart=options.restart))
    job = (options.engine, options.handle)
    sys.exit(supervise(run, node, folder, options.resume, job, options.restart, options.restarts_left))


def supervise(
    run: RunDirectory,
    node: Node,
    folder: NodesFolder,
    resume_step: int | None,
    job: tuple[str, Handle],
    restart: int = 0,
    restarts_left: int = 0,
) -> int:
    """Own the run and run node 0's part of it; return torchrun's exit code.

    Args:
        restart: how often the engine has started it again by itself: then it resumes from what is saved.
        restarts_left: how often it still would.

    Raises:
        ValueError: when another process owns it.
        OSError: when its folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, _wait_for_lock(run))
        run.remove_half_written_status()
        if restart:
            why, resume_step = restarts.why_started_again(run), restarts.step_to_resume_from(run)
            restarts.say_started_again(run, restart, why, resume_step)
        folder.make()
        run.expect_commands()

        def start(run: RunDirectory, config: Config, step: int | None, offset: int) -> TorchrunProcess:
            return start_torchrun(run, config, node, folder, step, offset, stack)[0]

        supervisor = Supervisor(run, resume_step, start=start, job=job)
        exit_code = supervisor.run_to_end()
        within_s = OTHERS_END_WITHIN_S if exit_code == 0 else 0.0
        restarts.close_start(
            run,
            folder,
            restarts_left,
            supervisor.cause,
            by_system=supervisor.was_told_to_end,
            others_end_within_s=within_s,
        )
        return exit_code


def follow(
    run: RunDirectory, node: Node, folder: NodesFolder, resume_step: int | None, *, restart: int = 0
) -> int:
    """Run another node's part until it ends or node 0 is gone; return torchrun's exit code."""
    lifeline.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    tree = ProcessTree(os.getpid(), with_root=False)
    with contextlib.ExitStack() as stack:
        stack.callback(tree.kill)
        _wait_for_folder(folder)
        if restart:
            resume_step = restarts.step_to_resume_from(run)
        started, can_hear = start_torchrun(run, run.read_config(), node, folder, resume_step, None, stack)
        torchrun, head = started.process, Head(folder, can_hear)
        while torchrun.poll() is None:
            tree.update()
            if (why := head.why_to_end(time.monotonic())) is not None:
                print(why, flush=True)
                return 1
            time.sleep(POLL_S)
        return torchrun.returncode


class Head:
    """Node 0 as another node hears it.

    Args:
        can_hear: whether this node's own file was written last time. While it was not, silence says nothing.
    """

    def __init__(self, folder: NodesFolder, can_hear: Callable[[], bool]) -> None:
        self._folder = folder
        self._can_hear = can_hear
        self._heard = HeardNode(0)
        self._looked_at = time.monotonic()
        self._end_at = math.inf

    def why_to_end(self, now: float) -> str | None:
        """Look about once a second; say why this node has to end, when it has."""
        if now - self._looked_at >= LOOK_EVERY_S:
            passed_s, self._looked_at = hangs.counted_s(now - self._looked_at), now
            values = self._folder.read("0")
            report = None if values is None else reports.node_report(values)
            self._heard.update(report, passed_s if self._can_hear() else 0.0)
            within_s = self._folder.end_within_s()
            if within_s is not None:
                self._end_at = min(self._end_at, now + within_s)
        if now >= self._end_at:
            return "Node 0 has ended this start of the run."
        return self._heard.words if self._heard.is_lost and self._end_at == math.inf else None


def start_torchrun(
    run: RunDirectory,
    config: Config,
    node: Node,
    folder: NodesFolder,
    resume_step: int | None,
    commands_offset: int | None,
    stack: contextlib.ExitStack,
) -> tuple[TorchrunProcess, Callable[[], bool]]:
    """Start torchrun on this node, and report its ranks until the stack is closed.

    Returns:
        torchrun, and what tells whether the newest report could be written.

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
    board = torchrun_process.board_for(config)
    process = torchrun_process.launch(arguments, log, details, board, variables)
    if board is None:
        return TorchrunProcess(process=process, details=details, ranks=None), lambda: False
    here = LocalRanks(run, board)
    reporter = Reporter(folder, node.rank, socket.gethostname(), here, node.ranks(config))
    reporter.begin()
    stack.callback(reporter.close)

    def can_hear() -> bool:
        return reporter.could_write

    ranks = RanksOfNodes(here, folder, node.num_nodes, can_hear)
    return TorchrunProcess(process=process, details=details, ranks=ranks), can_hear


def _wait_for_folder(folder: NodesFolder) -> None:
    """Wait until node 0 has begun.

    Raises:
        OSError: when it does not, or this node does not see its files.
    """
    deadline = time.monotonic() + COMES_WITHIN_S
    while not folder.is_there():
        if time.monotonic() > deadline:
            raise OSError(
                f"node 0 has made no {folder.path} that can be seen here within {COMES_WITHIN_S:.0f} s"
            )
        time.sleep(POLL_S)


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
