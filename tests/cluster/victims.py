"""The processes of a run on several nodes, for tests that kill one of them."""

from __future__ import annotations

import psutil

from tests.harness import processes_of
from trainers.contract.rundir import RunDirectory


def rank_of(run: RunDirectory, rank: int) -> psutil.Process:
    """Return the process of a rank."""
    return _only(run, f"ddp: {run.run_id} rank {rank} ")


def launcher_of(run: RunDirectory, node: int) -> psutil.Process:
    """Return the process that started torchrun on a node. That of node 0 writes the run's status."""
    return _only(run, "trainers.engines.several_nodes.node ", f" --node-rank {node} ")


def torchrun_of(run: RunDirectory, node: int) -> psutil.Process:
    """Return a node's torchrun."""
    (found,) = launcher_of(run, node).children()
    return found


def _only(run: RunDirectory, *parts: str) -> psutil.Process:
    words = {process: _words(process) for process in processes_of(run)}
    (found,) = (process for process, said in words.items() if all(part in said for part in parts))
    return found


def _words(process: psutil.Process) -> str:
    """Return a command line with a trailing space, or "" for a process that has ended."""
    try:
        return " ".join((*process.cmdline(), ""))
    except psutil.NoSuchProcess:  # also raised for a zombie
        return ""
