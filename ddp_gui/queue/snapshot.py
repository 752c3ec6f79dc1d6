"""A snapshot of the queue, with expected waiting times."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_gui.auth import rights
from ddp_gui.devices import capacity
from ddp_gui.queue.policy import (
    Allocatable,
    DeviceSnapshot,
    QueueDevices,
    Running,
    Situation,
    UsagePeriod,
    Waiting,
    decide,
)
from ddp_gui.queue.store import QueueState
from trainers.contract import rundir, tickets
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import Ticket, TicketError
from trainers.engines import liveness
from trainers.engines.base import HANDSHAKE_S
from trainers.files import private_files


def waiting_times(
    situation: Situation, remaining_s: Mapping[str, float | None], usual_s: float | None, now_unix_s: float
) -> dict[str, float]:
    """Return the estimated seconds until each queued run starts; runs without an estimate are omitted.

    Simulates the scheduling rule: starts all runs that fit, then advances to the next expected end of a run.

    Args:
        remaining_s: remaining duration of each live run; None if unknown.
        usual_s: recent median duration, assumed for queued runs; None if no run has ended.
    """
    if situation.is_paused:
        return {}
    at_unix_s, starts_in_s = now_unix_s, dict[str, float]()
    ends_at = {
        run.run_id: now_unix_s + left_s
        for run in situation.running
        if (left_s := limit_remaining_s(remaining_s.get(run.run_id), run, situation, now_unix_s)) is not None
    }
    while situation.waiting:
        starts = {start.run_id: start for start in decide(situation, at_unix_s)}
        starting = [run for run in situation.waiting if run.run_id in starts]
        for run in starting:
            starts_in_s[run.run_id] = at_unix_s - now_unix_s
            duration_s = limit_remaining_s(
                usual_s, _as_running(run, (), at_unix_s, situation), situation, at_unix_s
            )
            if duration_s is not None:
                ends_at[run.run_id] = at_unix_s + duration_s
        situation = replace(
            situation,
            waiting=[run for run in situation.waiting if run.run_id not in starts],
            running=[
                *situation.running,
                *(_as_running(run, starts[run.run_id].gpus, at_unix_s, situation) for run in starting),
            ],
        )
        next_end = min(ends_at, key=lambda run_id: ends_at[run_id], default=None)
        if next_end is None:
            return starts_in_s
        at_unix_s = max(at_unix_s, ends_at.pop(next_end))
        running = [run for run in situation.running if run.run_id != next_end]
        situation = replace(situation, running=running)
    return starts_in_s


def _as_running(run: Waiting, gpus: tuple[str, ...], at_unix_s: float, situation: Situation) -> Running:
    return Running(
        run_id=run.run_id,
        person=run.person,
        kind=run.kind,
        num_ranks=run.num_ranks,
        began_unix_s=at_unix_s,
        gpus=gpus,
        num_threads=situation.capacity.num_threads,
    )


def limit_remaining_s(
    remaining_s: float | None, run: Running, situation: Situation, at_unix_s: float
) -> float | None:
    """Return a run's remaining duration: its estimate, capped by its owner's time limit."""
    minutes = situation.rules.limits_of(run.person).minutes_per_run
    if minutes is None:
        return remaining_s
    allowed_s = max(0.0, run.began_unix_s + 60 * minutes - at_unix_s)
    return allowed_s if remaining_s is None else min(remaining_s, allowed_s)


# Time after which a supervisor that has not claimed its ticket counts as dead.
STARTING_S = HANDSHAKE_S + 5.0
# Maximum age of a timestamp that is not trusted: two changes in quick succession can have the same one.
SETTLED_AFTER_NS = 2_000_000_000
# Delay before a run whose folder cannot be written is tried again.
STUCK_S = 30.0


@dataclass(frozen=True, kw_only=True)
class QueueSnapshot:
    """The queue at one moment.

    Attributes:
        tickets: tickets of the queued runs.
        starting: runs with a grant that their supervisor has not claimed yet.
        broken: reasons why a run's ticket is unusable.
    """

    situation: Situation
    tickets: Mapping[str, Ticket]
    devices: DeviceSnapshot
    starting: frozenset[str]
    broken: Mapping[str, str]


class SnapshotReader:
    """Reads queued and live runs. Caches data that cannot have changed."""

    def __init__(
        self, runs_dir: Path, devices: QueueDevices, num_threads: Callable[[], int] = lambda: 1
    ) -> None:
        self._runs_dir = runs_dir
        self._devices = devices
        self._num_threads = num_threads
        self._tickets_read: dict[str, tuple[tuple[int, int], Ticket]] = {}
        # Live runs that were started without a page, and are not in the stored state.
        self._started_manually: set[str] = set()
        self._searched: dict[str, int] = {}
        # Queued runs that could not be started, with the time until which they are skipped and the reason.
        self._stuck: dict[str, tuple[float, str]] = {}

    def take(self, state: QueueState, now_unix_s: float) -> QueueSnapshot:
        """Return a snapshot of the queued and live runs."""
        waiting, running, broken = dict[str, Ticket](), list[Running](), dict[str, str]()
        starting = set()
        devices = self._devices.sample()
        for run_id in dict.fromkeys([*state.waiting, *state.running, *self._started_manually]):
            run = RunDirectory(self._runs_dir / run_id)
            if (reason := self._stuck_reason(run_id)) is not None:
                broken[run_id] = reason
                continue
            try:
                ticket = self._read_ticket(run)
                if ticket is not None and not _is_starting(run, ticket, now_unix_s):
                    waiting[run_id] = ticket
                elif ticket is not None or liveness.is_alive(run):
                    starting.update([run_id] if ticket is not None else [])
                    running.append(_read_running(run, ticket, devices, now_unix_s))
            except TicketError as error:
                broken[run_id] = str(error)
            except (OSError, ValueError):
                continue  # the run was deleted, or its device usage is unknown
        situation = Situation(
            waiting=[waiting_from_ticket(run_id, ticket) for run_id, ticket in waiting.items()],
            running=running,
            capacity=replace(_available_capacity(devices, running), num_threads=self._num_threads()),
            rules=state.limits,
            ended=state.ended,
            first=state.first,
            is_paused=state.is_paused,
        )
        return QueueSnapshot(
            situation=situation,
            tickets=waiting,
            devices=devices,
            starting=frozenset(starting),
            broken=broken,
        )

    def update_state(self, state: QueueState, snapshot: QueueSnapshot, now_unix_s: float) -> None:
        """Update the state from a snapshot: queued and live runs, and the usage of ended runs."""
        live = {run.run_id for run in snapshot.situation.running}
        for run_id in state.running:
            if run_id not in live and (span := self._read_span(run_id, now_unix_s)) is not None:
                state.ended.append(span)
        state.running = [run.run_id for run in snapshot.situation.running]
        state.waiting = [*snapshot.tickets, *snapshot.broken]
        state.first = [run_id for run_id in state.first if run_id in snapshot.tickets]
        self._started_manually &= live
        self._tickets_read = {
            run_id: read for run_id, read in self._tickets_read.items() if run_id in snapshot.tickets
        }

    def search(self) -> set[str]:
        """Find queued and live runs, including those started manually. Only changed folders are read."""
        run_ids, marks = set(), dict[str, int]()
        for name, mark in _folders(self._runs_dir):
            marks[name] = mark
            if self._searched.get(name) == mark:
                continue
            run = RunDirectory(self._runs_dir / name)
            with contextlib.suppress(OSError):  # an unreadable run must not block other runs
                if run.queued.exists() or liveness.is_alive(run):
                    run_ids.add(name)
        settled_before = time.time_ns() - SETTLED_AFTER_NS
        self._searched = {name: mark for name, mark in marks.items() if mark < settled_before}
        self._started_manually |= run_ids
        return run_ids

    def skip_stuck(self, run_id: str, error: OSError) -> None:
        """Skip this run for a while because its folder cannot be written."""
        reason = f"It could not be started, because its folder is not writable ({error.strerror})."
        self._stuck[run_id] = time.monotonic() + STUCK_S, reason

    def _stuck_reason(self, run_id: str) -> str | None:
        until, reason = self._stuck.get(run_id, (0.0, ""))
        if time.monotonic() < until:
            return reason
        self._stuck.pop(run_id, None)
        return None

    def _read_ticket(self, run: RunDirectory) -> Ticket | None:
        try:
            file_stat = run.queued.stat()
        except FileNotFoundError:
            return None
        mark = (file_stat.st_ino, file_stat.st_mtime_ns)
        cached = self._tickets_read.get(run.run_id)
        if cached is not None and cached[0] == mark:
            return cached[1]
        if not run.config.exists():
            return None  # the page was killed before it finished creating the run
        ticket = tickets.read_queued(run)
        if ticket is not None:
            self._tickets_read[run.run_id] = (mark, ticket)
        return ticket

    def _read_span(self, run_id: str, now_unix_s: float) -> UsagePeriod | None:
        """Return an ended run's usage; None if it was deleted or not started from the queue."""
        run = RunDirectory(self._runs_dir / run_id)
        try:
            ticket, ended_unix_s = tickets.read_granted(run), liveness.read_status(run).ended_unix_s
        except (OSError, ValueError):
            return None
        if ticket is None or ticket.grant is None:
            return None
        return UsagePeriod(
            person=ticket.person,
            num_ranks=ticket.num_ranks,
            began_unix_s=ticket.grant.granted_unix_s,
            ended_unix_s=ended_unix_s or now_unix_s,
        )


def _is_starting(run: RunDirectory, ticket: Ticket, now_unix_s: float) -> bool:
    """Return True if the run was started and its engine has not claimed the ticket yet."""
    if ticket.grant is None:
        return False
    # Use the absolute difference, because the clock may be set back.
    return liveness.is_alive(run) or abs(now_unix_s - ticket.grant.granted_unix_s) < STARTING_S


def waiting_from_ticket(run_id: str, ticket: Ticket) -> Waiting:
    """Convert a queued run's ticket to the input of the scheduling rule."""
    return Waiting(
        run_id=run_id,
        person=ticket.person,
        kind=ticket.kind,
        num_ranks=ticket.num_ranks,
        asked_unix_s=ticket.asked_unix_s,
        may_share=ticket.uses_occupied_gpus,
    )


def _read_running(
    run: RunDirectory, ticket: Ticket | None, devices: DeviceSnapshot, now_unix_s: float
) -> Running:
    """Return a live run's usage: its grant, or the observed usage if it was started manually."""
    ticket = ticket or tickets.read_granted(run)
    if ticket is not None and ticket.grant is not None:
        return Running(
            run_id=run.run_id,
            person=ticket.person,
            kind=ticket.kind,
            num_ranks=ticket.num_ranks,
            began_unix_s=ticket.grant.granted_unix_s,
            gpus=tuple(gpu.uuid for gpu in ticket.grant.gpus),
            num_threads=ticket.grant.num_threads or 1,
        )
    config = run.read_config()
    return Running(
        run_id=run.run_id,
        person=rights.owner_of(run) or "",
        kind="cuda" if capacity.read().device_kind(config.device) == "cuda" else "cpu",
        num_ranks=config.world_size,
        began_unix_s=liveness.read_status(run).started_unix_s or now_unix_s,
        gpus=devices.gpus_of(run.run_id),
    )


def _available_capacity(devices: DeviceSnapshot, running: Iterable[Running]) -> Allocatable:
    """Return the available resources. A GPU with a process of an ended run counts as occupied."""
    gpus_by_run = {run.run_id: run.gpus for run in running}
    occupied = [
        gpu.uuid
        for gpu in devices.gpus
        if devices.users_of(gpu.uuid).other_programs
        or any(gpu.uuid not in gpus_by_run.get(run_id, ()) for run_id in devices.users_of(gpu.uuid).runs)
    ]
    return Allocatable(
        gpus=tuple(gpu.uuid for gpu in devices.gpus),
        occupied=frozenset(occupied),
        cpu_ranks=devices.cpu_ranks,
        being_checked=devices.being_checked,
    )


def _folders(runs_dir: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and modification time of each run's folder."""
    try:
        with os.scandir(runs_dir) as entries:
            for entry in entries:
                # Ignore other entries, and entries that were deleted in the meantime. A run of another system
                # user is displayed, but is not part of the queue.
                with contextlib.suppress(OSError):
                    folder_stat = entry.stat(follow_symlinks=False)
                    is_run = rundir.is_run_id(entry.name) and stat.S_ISDIR(folder_stat.st_mode)
                    if is_run and private_files.is_ours(folder_stat):
                        yield entry.name, folder_stat.st_mtime_ns
    except FileNotFoundError:
        return
