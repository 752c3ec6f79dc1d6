"""The launcher on each node of a run.

Node 0's launcher owns the run: it holds the lock, runs the `Supervisor` and writes the status. The launchers
of other nodes (`follow`) run torchrun and send reports. All launchers exchange reports through the shared
folder, and check over the network that the others are alive.

When a node is lost, the run may restart without it, so the lost node must have stopped with certainty.
`Lease` (`peers.py`) guarantees this: a launcher kills its ranks if, for `LEASE_S`, it could not write to the
shared folder and the nodes that it depends on have not confirmed that it is alive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainers.contract import fence
from trainers.contract.commands import Incoming
from trainers.contract.config import Config
from trainers.contract.events import State
from trainers.contract.fence import SupersededError
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle
from trainers.engines.heartbeats import HeartbeatMemory
from trainers.engines.local import hang_watch, torchrun_process
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stacks import Ranks
from trainers.engines.local.supervisor import Supervisor
from trainers.engines.local.torchrun import COMMANDS_OFFSET
from trainers.engines.several_nodes import reports, restarts
from trainers.engines.several_nodes.engine_commands import EngineCommands, EngineQuestion, ScriptSignals
from trainers.engines.several_nodes.peers import LEASE_S, Lease, Node, Peers
from trainers.engines.several_nodes.reports import (
    CHECK_EVERY_S,
    FIRST_REPORT_LIMIT_S,
    LatestReport,
    NodeReporter,
    NodesFolder,
    RanksOfNodes,
)
from trainers.files import private_files
from trainers.files.json_files import remove_half_written
from trainers.machine import lifeline, os_errors
from trainers.machine.host import MemoryFile
from trainers.machine.processes import ProcessTree
from trainers.watch.settings import STORE

POLL_S = 0.1
SLEEP_UNTIL_ENDED_S = 24 * 3600
# Time to wait for the lock, which the engine holds until it has written the job's handle to the status.
LOCK_LIMIT_S = 30.0
# After a successful run the torchruns of all nodes exit at about the same time.
OTHER_NODES_END_LIMIT_S = 10.0


def main() -> None:
    """Run this node's part to its end; exit with torchrun's exit code."""
    parser = argparse.ArgumentParser(description="Run one node's part of a training job.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--handle", required=True, type=json.loads, metavar="JSON")
    parser.add_argument("--start", required=True, metavar="NAME", help="unique name of this start of the run")
    parser.add_argument("--node-rank", required=True, type=int)
    parser.add_argument("--num-nodes", required=True, type=int)
    parser.add_argument("--head", required=True, metavar="HOST")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--resume", type=int, metavar="STEP")
    parser.add_argument("--restart", type=int, default=0, help="how often the engine has restarted the run")
    parser.add_argument("--restarts-left", type=int, default=0, help="how many restarts remain")
    options = parser.parse_args()
    os_errors.keep_going_without_log()
    run = RunDirectory(options.run_dir.resolve())
    node = Node(rank=options.node_rank, num_nodes=options.num_nodes, head=options.head, port=options.port)
    private_files.begin(run.path.parent)
    folder = NodesFolder(run, options.start)
    if options.restart and restarts.has_ended(run):
        sys.exit(0)  # the run's end was recorded before the engine knew of it
    commands = EngineCommands.from_environment()
    script_signals = ScriptSignals.from_environment(is_head=node.is_head)
    part = Part(run, node, folder, options.restart, options.restarts_left, commands, script_signals)
    try:
        sys.exit(
            supervise(part, options.resume, (options.engine, options.handle))
            if node.is_head
            else follow(part, options.resume)
        )
    except SupersededError as error:
        ProcessTree(os.getpid(), with_root=False).kill()
        print(f"this launcher exits without writing: {error}", flush=True)
        sys.exit(1)


@dataclass(frozen=True)
class Part:
    """One node's part of a start of a run.

    Attributes:
        restart: Number of automatic restarts so far; after the first, the run resumes from its checkpoint.
        restarts_left: Number of automatic restarts that remain.
    """

    run: RunDirectory
    node: Node
    folder: NodesFolder
    restart: int
    restarts_left: int
    commands: EngineCommands
    script_signals: ScriptSignals

    @property
    def lease_s(self) -> float:
        """Time for which this node may work without the shared folder and the other nodes, in seconds.

        Unlimited for a single node without automatic restarts: nothing replaces it, so it waits.
        """
        is_replaced = self.node.num_nodes > 1 or (self.commands.restart and self.restarts_left > 0)
        return LEASE_S if is_replaced else math.inf


def supervise(part: Part, resume_step: int | None, job: tuple[str, Handle]) -> int:
    """Own the run and run node 0's part of it; return torchrun's exit code.

    Raises:
        ValueError: If another process owns the run.
        OSError: If its folder cannot be written.
        SupersededError: If a later start of the run exists.
    """
    run, folder = part.run, part.folder
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, _wait_for_lock(run))
        restarts.claim(run, folder.path.name, *job, part.restart)
        remove_half_written(run.status)
        if part.restart:
            reason, resume_step = restarts.last_restart_reason(run), restarts.step_to_resume_from(run)
            restarts.append_restart(run, part.restart, reason, resume_step)
        folder.make()
        run.expect_commands()
        questions: list[EngineQuestion] = []
        restart_reasons: list[str] = []

        def start(
            _run: RunDirectory, config: Config, step: int | None, offset: int
        ) -> tuple[subprocess.Popen[bytes], Ranks]:
            process, reporter = start_torchrun(part, config, step, offset, stack)
            return process, RanksOfNodes(reporter)

        def restart_reason(state: State, cause: Cause | None) -> str | None:
            plan = questions[0].answer() if questions else None
            restarts_by_itself = plan is not None and plan.will_restart
            reason = restarts.restart_reason(
                folder, part.restarts_left, state, cause, plan, is_stop_pending=supervisor.is_stop_pending
            )
            restart_reasons.extend([] if reason is None or restarts_by_itself else [reason])
            return reason

        supervisor = Supervisor(
            run,
            resume_step,
            start=start,
            job=job,
            restart_reason=restart_reason,
            on_sigterm=lambda: questions.append(part.commands.ask_reason()),
        )
        exit_code = supervisor.run_to_end()
        restarts.close_start(
            folder,
            part.script_signals,
            must_request_restart=bool(restart_reasons),
            by_system=supervisor.is_end_requested,
            other_nodes_limit_s=OTHER_NODES_END_LIMIT_S if exit_code == 0 else 0.0,
        )
        return exit_code


def follow(part: Part, resume_step: int | None) -> int:
    """Run another node's part until it ends or node 0 is lost; return torchrun's exit code."""
    run, folder = part.run, part.folder
    stops = Incoming(run.commands)
    lifeline.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    tree = ProcessTree(os.getpid(), with_root=False)
    with contextlib.ExitStack() as stack:
        _wait_for_folder(folder)
        fence.enter(run.path, folder.path.name)
        fence.require_newest(run.path)
        if part.restart:
            resume_step = restarts.step_to_resume_from(run)
        config = run.read_config()
        stack.enter_context(torchrun_process.folder_for_ranks(config.num_workers))
        stack.callback(tree.kill)
        torchrun, reporter = start_torchrun(part, config, resume_step, None, stack)
        head = HeadNode(reporter)
        while torchrun.poll() is None:
            tree.update()
            if head.must_terminate:
                torchrun.terminate()
            if (end_reason := head.end_reason(time.monotonic())) is not None:
                print(end_reason, flush=True)
                tree.kill()
                folder.write(f"{part.node.rank}-ended", {"why": end_reason})
                if head.is_lost:
                    reporter.peers.lost_nodes.add(0)
                    _end_in_place_of_head(part, end_reason, stops)
                return 1
            time.sleep(POLL_S)
        _wait_for_end_of_head(part, head, stops)
        return torchrun.returncode


def _wait_for_end_of_head(part: Part, head: HeadNode, stops: Incoming) -> None:
    """Wait until node 0 ends the start; if node 0 is lost, end the start in its place."""
    while (end_reason := head.end_reason(time.monotonic())) is None and not head.has_requested_end:
        time.sleep(POLL_S)
    if end_reason is not None and head.is_lost:
        _end_in_place_of_head(part, end_reason, stops)


def _end_in_place_of_head(part: Part, message: str, stops: Incoming) -> None:
    """Record that node 0 is lost; let the engine restart the run, or cancel the rest of the job."""
    will_restart = restarts.take_over(
        part.run,
        part.folder,
        part.node.rank,
        message,
        part.restarts_left,
        is_stop_pending=bool(stops.stops()),
    )
    if will_restart is not None:
        part.commands.run_until_accepted(
            part.commands.restart_later if will_restart else part.commands.cancel
        )


class HeadNode:
    """Node 0, as another node knows it. Its silence counts only while this node can write reports."""

    def __init__(self, reporter: NodeReporter) -> None:
        self._folder, self._reporter = reporter.folder, reporter
        self._report = LatestReport(0)
        self._checked_at = time.monotonic()
        self._end_at = math.inf
        self._has_seen_sigterm = self._has_new_sigterm = False

    def end_reason(self, now: float) -> str | None:
        """Check about once a second; return why this node must end, or None."""
        if now - self._checked_at >= CHECK_EVERY_S:
            elapsed_s, self._checked_at = hang_watch.counted_s(now - self._checked_at), now
            report = self._report.update(self._folder, elapsed_s if self._reporter.could_write else 0.0)
            if report is not None:
                self._reporter.peers.add_endpoints(report.endpoints)
            if not self._has_seen_sigterm and self._folder.read(reports.TERMINATE) is not None:
                self._has_seen_sigterm = self._has_new_sigterm = True
            limit_s = self._folder.end_within_s()
            if limit_s is not None:
                self._end_at = min(self._end_at, now + limit_s)
        if now >= self._end_at:
            return "Node 0 has ended this start of the run."
        return self._report.lost_message if self.is_lost else None

    @property
    def must_terminate(self) -> bool:
        """True once, when node 0 has sent SIGTERM to its own ranks."""
        is_new, self._has_new_sigterm = self._has_new_sigterm, False
        return is_new

    @property
    def is_lost(self) -> bool:
        return self._report.is_lost and not self.has_requested_end

    @property
    def has_requested_end(self) -> bool:
        return self._end_at < math.inf


def start_torchrun(
    part: Part,
    config: Config,
    resume_step: int | None,
    commands_offset: int | None,
    stack: contextlib.ExitStack,
) -> tuple[subprocess.Popen[bytes], NodeReporter]:
    """Start torchrun on this node, and report its ranks until the stack is closed.

    Returns:
        torchrun, and the reporter of its ranks.

    Raises:
        OSError: If it cannot be started, or the head cannot be reached.
    """
    run, node, folder = part.run, part.node, part.folder
    variables = {fence.VARIABLE: folder.path.name, **node.environment()}
    if commands_offset is not None:
        variables[COMMANDS_OFFSET] = str(commands_offset)
    if config.is_script:
        variables |= node.script_environment()
        if node.num_nodes == 1:
            variables[STORE] = MemoryFile("store").address
    heartbeat_memory = HeartbeatMemory(config.world_size)
    rendezvous_args = node.rendezvous_arguments(config.nproc_per_node)
    process = torchrun_process.start_ranks(
        run,
        config,
        resume_step,
        heartbeat_memory,
        variables,
        rendezvous_args=rendezvous_args,
        machine=node.rank,
    )
    lease = Lease(lambda: _kill_without_folder(part), part.lease_s)
    peers = Peers(node, lease)
    reporter = NodeReporter(
        folder, socket.gethostname(), Ranks(run, heartbeat_memory), node.ranks(config), peers
    )
    for begin_function, close_function in (
        (lease.begin, lease.close),
        (peers.begin, peers.close),
        (reporter.begin, reporter.close),
    ):
        begin_function()
        stack.callback(close_function)

    return process, reporter


def _kill_without_folder(part: Part) -> None:
    """Kill this node's ranks and this launcher, without accessing the shared folder, which may hang.

    If the engine restarts jobs, this process becomes `sleep` until the engine ends the rest of the job. If
    the process exited, Slurm's daemon would try for a minute to report the end. If the job restarted on this
    node in that minute, Slurm would drain the node ("Duplicate jobid").
    """
    ProcessTree(os.getpid(), with_root=False).kill()
    part.script_signals.request_requeue()
    if part.commands.restart:
        os.execvp("sleep", ["sleep", str(SLEEP_UNTIL_ENDED_S)])
    os._exit(1)


def _wait_for_folder(folder: NodesFolder) -> None:
    """Wait until node 0 has created the start's folder.

    Raises:
        OSError: If node 0 does not create it in time, or this node cannot see its files.
    """
    deadline = time.monotonic() + FIRST_REPORT_LIMIT_S
    while not folder.exists():
        if time.monotonic() > deadline:
            raise OSError(
                f"node 0 has not created {folder.path} within {FIRST_REPORT_LIMIT_S:.0f} s, or this node "
                "cannot see it"
            )
        time.sleep(POLL_S)


def _wait_for_lock(run: RunDirectory) -> int:
    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            return run.acquire_lock()
        except ValueError:
            if time.monotonic() > deadline:
                raise


if __name__ == "__main__":
    main()
