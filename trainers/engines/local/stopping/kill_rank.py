"""Kills one rank of a run of this machine, for who wants to see what becomes of the others."""

from __future__ import annotations

import logging

import psutil

from trainers.contract import tickets
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import RANK_KILL_ASKED, Status
from trainers.engines.local import final_events
from trainers.engines.local.stopping.supervisor_watch import supervisor_of
from trainers.machine import processes
from trainers.machine.os_errors import explain

log = logging.getLogger(__name__)


def kill(run: RunDirectory, status: Status, rank: int) -> None:
    """Record in the events that a user asked for it, then kill the process of a rank (SIGKILL).

    The event comes first, so that whoever explains the end finds it. A full disk does not protect the rank.

    Raises:
        ValueError: when the run or the rank has no process here.
    """
    supervisor = supervisor_of(run, status)
    process = None if supervisor is None else _process_of(run, supervisor, rank)
    if process is None:
        raise ValueError(f"rank {rank} of run {run.run_id} has no process on this machine now")
    bits = ", with the same bits" if _repeats_bits(run) else ""
    warning = {
        "code": RANK_KILL_ASKED,
        "message": f"Rank {rank} is killed (SIGKILL), as somebody asked on this page.",
        "hint": f"The run fails now. Resume goes on from its newest checkpoint{bits}.",
        "rank": rank,
        "traceback": None,
    }
    try:
        final_events.append(run, [("warning", warning)])
    except OSError as error:
        log.warning("that rank %d is killed could not be recorded: %s", rank, explain(error))
    try:
        process.kill()  # psutil sees to it that the number is still this process's
    except psutil.NoSuchProcess as error:
        raise ValueError(f"rank {rank} of run {run.run_id} has just ended by itself") from error


def _repeats_bits(run: RunDirectory) -> bool:
    """Return True if Resume is known to compute the same bits."""
    try:
        config, ticket = run.read_config(), tickets.read_granted(run)
    except (OSError, ValueError):
        return False
    # Started by hand with device auto, it may be on GPUs.
    kind = ticket.kind if ticket is not None else "cpu" if config.device == "cpu" else "cuda"
    return config.repeats_bits(kind)


def _process_of(run: RunDirectory, supervisor: psutil.Process, rank: int) -> psutil.Process | None:
    """Return the process below the supervisor whose output goes to the rank's log, but no child of it."""
    log = run.rank_log(rank).resolve()
    try:
        below = supervisor.children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    found = {process.pid: process for process in below if processes.output_of(process.pid) == log}
    for process in found.values():
        try:
            if process.ppid() not in found and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            continue
    return None
