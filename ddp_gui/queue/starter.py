"""Starts runs that have a grant, and checks whether a run is allowed to start.

A queued run has a ticket in its folder, `queued.json`. To start the run, the scheduler writes a grant (the
devices and a token) into the ticket, and the run's supervisor claims the ticket by renaming it to
`granted.json`. A run whose grant was not claimed within `snapshot.STARTING_S` counts as queued again, so no
run is lost if the page is killed in between.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ddp_gui.auth import rights
from ddp_gui.devices import disk
from ddp_gui.queue.policy import Allocatable, Limits, Rules, Situation
from ddp_gui.runs.listing import runs_text
from trainers.contract import events, rundir, tickets
from trainers.contract import status as status_file
from trainers.contract.config import ConfigError, Problem
from trainers.contract.events import EventFile, State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.contract.tickets import Ticket
from trainers.engines import liveness
from trainers.engines.base import Engine, Launch, StartError
from trainers.engines.local import torchrun
from trainers.files import json_files
from trainers.files.plain_files import open_to_append
from trainers.files.private_files import ForeignFileError
from trainers.forward.state import TRACKERS
from trainers.machine import environment, os_errors
from trainers.machine.os_errors import explain

MAX_NAMED = 3
GB = 1e9


def check_limits(situation: Situation, ticket: Ticket) -> None:
    """Check that a run can start eventually and that its owner may queue it.

    Raises:
        ValueError: naming the exceeded limit and the allowed value.
    """
    limits = situation.rules.limits_of(ticket.person)
    limit = _max_ranks(ticket, situation.capacity, limits)
    if limit is not None and ticket.num_ranks > limit[0]:
        allowed = f"a whole number from 1 to {limit[0]}: {limit[1]}"
        raise ConfigError([Problem(field="nproc_per_node", value=ticket.num_ranks, allowed=allowed)])
    num_queued = sum(run.person == ticket.person for run in situation.waiting)
    if limits.num_waiting is not None and num_queued >= limits.num_waiting:
        raise ValueError(
            f"You have {runs_text(num_queued)} in the queue, and your limit is {limits.num_waiting}: wait "
            "until a run has started, or remove a run"
        )


def _max_ranks(ticket: Ticket, capacity: Allocatable, limits: Limits) -> tuple[int, str] | None:
    """Return the maximum number of ranks and its reason; None if only the machine limits it."""
    maxima = []
    if ticket.kind == "cpu" and capacity.cpu_ranks is not None:
        maxima.append((capacity.cpu_ranks, "the number of CPU ranks that this page allows"))
    if ticket.kind == "cuda" and capacity.gpus:
        maxima.append((len(capacity.gpus), "the number of GPUs that this page may use"))
    if limits.num_ranks is not None:
        maxima.append((limits.num_ranks, "your limit for all of your runs together"))
    return min(maxima, default=None)


def check_disk_space(runs_dir: Path, person: str, rules: Rules) -> None:
    """Check that the disk has its reserve and that the user's runs are below the disk limit, if any.

    Raises:
        ValueError: with the stored size, the limit and the largest runs.
    """
    free, reserve = rundir.disk_space(disk.nearest_folder(runs_dir))
    if free < reserve:
        raise ValueError(
            f"the disk of {runs_dir} has {_size(free)} free, and {_size(reserve)} are reserved for the page "
            "and live runs, so no run can start: delete runs that you no longer need and empty the bin"
        )
    limit = rules.limits_of(person).disk_bytes
    if limit is None:
        return
    sizes = bytes_by_run(runs_dir, person)
    total = sum(sizes.values())
    if total < limit:
        return
    raise ValueError(
        f"Your runs use {_size(total)} of disk space, and your limit is {_size(limit)}: delete some runs and "
        f"empty the bin. {_largest_runs_text(runs_dir, sizes)}"
    )


def bytes_by_run(runs_dir: Path, person: str) -> dict[str, int]:
    """Return the disk usage of each of a user's runs, including those in the bin."""
    sizes = {}
    for folder in (runs_dir, runs_dir / ".bin"):
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            run = RunDirectory(path)
            with contextlib.suppress(OSError):  # an unreadable run has no known owner
                is_run = rundir.is_run_id(path.name.partition("~")[0]) and run.config.is_file()
                if is_run and (rights.owner_of(run) or "") == person:
                    sizes[str(path.relative_to(runs_dir))] = disk.taken_bytes(path)
    return sizes


def _largest_runs_text(runs_dir: Path, sizes: dict[str, int]) -> str:
    """Return a sentence with the largest runs that can be deleted."""
    ended = [name for name in sizes if _has_ended(RunDirectory(runs_dir / name))]
    largest = sorted(ended, key=lambda name: -sizes[name])[:MAX_NAMED]
    if not largest:
        return "All of these runs are still live."
    labels = [f"{_display_name(name)} ({_size(sizes[name])})" for name in largest]
    return f"The largest: {', '.join(labels)}."


def _has_ended(run: RunDirectory) -> bool:
    try:
        return liveness.read_status(run).state not in events.LIVE_STATES
    except (OSError, ValueError):
        return False  # the run's files are invalid


def _display_name(name: str) -> str:
    folder, _, run_id = name.rpartition("/")
    return f"{run_id} in the bin" if folder else run_id


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GB:.2f} GB" if size_bytes >= GB / 10 else f"{size_bytes / 1e6:.1f} MB"


TAKEN_OUT = "Removed from the queue before it started."


def write_grant(run: RunDirectory, ticket: Ticket) -> bool:
    """Write a grant into a queued run's ticket; return True if the run was still queued.

    Raises:
        OSError: if its folder cannot be written.
    """
    try:
        with run.owned():
            if not run.queued.exists():
                return False
            tickets.write_queued(run, ticket)
            return True
    except ValueError:
        return False  # a user started the run from a terminal


def remove_from_queue(run: RunDirectory) -> State | None:
    """Remove a run from the queue; return its state, or None if it was no longer queued.

    A run that never started becomes "stopped"; a resumed run reverts to its previous state.
    """
    try:
        with run.owned():
            ticket = _readable_ticket(run)
            if not run.queued.exists():
                return None
            was_new = _record_and_remove(run, ticket, "stopped", None, TAKEN_OUT)
    except ValueError:
        return None  # the supervisor holds the lock: the run has started
    return "stopped" if was_new else liveness.read_status(run).state


def mark_failed(run: RunDirectory, error: str, token: str | None = None) -> None:
    """Remove a run that cannot be started from the queue and mark it as failed.

    Args:
        token: only if the run's ticket still has the grant with this token; None: in any case.
    """
    with contextlib.suppress(ValueError, OSError), run.owned():
        ticket = _readable_ticket(run)
        if token is not None and (ticket is None or ticket.grant is None or ticket.grant.token != token):
            return
        if run.queued.exists():
            _record_and_remove(run, ticket, "failed", error, error)


class Starter:
    """Starts runs through an engine, and follows each run in a thread until it ends."""

    def __init__(self, engine: Engine, on_end: Callable[[], None]) -> None:
        self._engine = engine
        self._on_end = on_end

    def launch(self, run: RunDirectory, ticket: Ticket) -> Future[None]:
        """Start a run. The future completes when the engine owns the run. If the engine refuses the run, the
        future raises a StartError and the run is marked as failed.
        """
        owned: Future[None] = Future()
        try:
            launch = self._engine.start(run, ticket.resume_step, ticket.grant)
        except (OSError, ValueError) as error:
            mark_failed(
                run,
                f"The run could not be started: {explain(error)}",
                ticket.grant.token if ticket.grant else None,
            )
            owned.set_exception(StartError(f"run {run.run_id} could not be started: {explain(error)}"))
            return owned
        thread = threading.Thread(
            target=self._follow, args=(run, ticket, launch, owned), name=f"follow-{run.run_id}", daemon=True
        )
        thread.start()
        return owned

    def _follow(self, run: RunDirectory, ticket: Ticket, launch: Launch, owned: Future[None]) -> None:
        assert ticket.grant is not None
        try:
            launch.wait_until_owned()
            owned.set_result(None)
        except Exception as error:  # noqa: BLE001 - a caller waits for the result of any error
            mark_failed(run, explain(error), ticket.grant.token)
            owned.set_exception(error)
        else:
            forward(run)
        launch.wait_for_end()
        self._on_end()


def forward(run: RunDirectory) -> None:
    """Start the process that sends a run's events to its tracker, if its configuration names one.

    The process is a child of the page, because the supervisor kills its own descendants at the end of the
    run. It outlives the page because it has its own session. A lock in the run's folder allows one process
    per tracker.
    """
    try:
        kind = TRACKERS.get(run.read_config().forward_to)
        if kind is None:
            return
        # The address and the proxies may contain a password, like the keys.
        names = {*kind.keys, kind.address, *environment.PROXIES}
        variables = {name: os.environ[name] for name in names if name in os.environ}
        with os.fdopen(open_to_append(run.logs / "forward.log"), "ab") as log:
            process = torchrun.start_module(["trainers.forward", str(run.path.resolve())], log, variables)
    except (OSError, ValueError) as error:
        print(f"run {run.run_id} is not forwarded: {explain(error)}", flush=True)
        return
    threading.Thread(target=process.wait, name=f"forward-{run.run_id}", daemon=True).start()


def _record_and_remove(
    run: RunDirectory, ticket: Ticket | None, state: State, error: str | None, reason: str
) -> bool:
    """Record why a queued run does not start, then remove its ticket; return True if this ends the run.

    If the disk is full, the ticket's file becomes the status file, which needs no space, so that the run
    cannot start later.
    """
    # A resumed run already has a final status and keeps it, unless it failed to start.
    has_no_end = state == "failed" or not run.status.exists()
    status = Status(state=state, error=error, ended_unix_s=time.time())
    try:
        if ticket is not None and ticket.config_before is not None:
            json_files.write_json_atomically(run.config, ticket.config_before)
        if has_no_end:
            _append_state_event(run, state, reason)
            run.write_status(status)
    except OSError as write_error:
        if write_error.errno not in os_errors.NO_SPACE:
            raise
        if has_no_end:
            json_files.overwrite_json(run.queued, status_file.to_json(status))
            run.queued.rename(run.status)
    run.queued.unlink(missing_ok=True)
    return has_no_end


def _append_state_event(run: RunDirectory, state: State, reason: str) -> None:
    entries: list[tuple[float, str, dict[str, Any]]] = [
        (time.time(), "state", {"state": state, "reason": reason})
    ]
    try:
        with contextlib.closing(EventFile(run.events)) as file:
            file.append(entries)
    except ForeignFileError as error:
        print(f"{error}; its status says how run {run.run_id} ended.", flush=True)


def _readable_ticket(run: RunDirectory) -> Ticket | None:
    try:
        return tickets.read_queued(run)
    except tickets.TicketError:
        return None
