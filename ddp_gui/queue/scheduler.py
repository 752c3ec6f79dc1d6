"""The scheduler: starts a run immediately if its devices are free, and queues it otherwise.

All pages that serve a runs directory share one queue. Changing the queue, or starting a run from it, requires
the lock of the `store`. If a page is killed during a change, the next snapshot of the runs' files repairs the
state.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ddp_gui.devices import capacity
from ddp_gui.devices.capacity import Machine
from ddp_gui.launch import launcher
from ddp_gui.plan.plan import Startable
from ddp_gui.queue import starter
from ddp_gui.queue.policy import (
    USAGE_WINDOW_S,
    Free,
    Limits,
    QueueDevices,
    StartDecision,
    decide,
    queue_order,
)
from ddp_gui.queue.snapshot import QueueSnapshot, SnapshotReader, waiting_from_ticket
from ddp_gui.queue.starter import Starter
from ddp_gui.queue.store import QueueState, QueueStore, QueueStoreError
from trainers.contract import manifests, rundir, tickets
from trainers.contract.config import Config, ConfigError
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import DeviceKind, Grant, Ticket
from trainers.engines.base import Engine, EngineQueue, PlacementField
from trainers.engines.local.engine import LocalEngine
from trainers.files import json_files
from trainers.machine import host, threads
from trainers.machine.threads import PeriodicThread

Result = TypeVar("Result")

POLL_EVERY_S = 1.0
SEARCH_EVERY_S = 30.0
# With logins, a run's checkpoints may use 1 / SHARES_OF_DISK of the space that is free at its start.
SHARES_OF_DISK = 10


@dataclass(frozen=True, kw_only=True)
class StartResult:
    """The result of a start.

    Attributes:
        ticket: the run's ticket, with a grant if the run started.
        snapshot: the queue with this run.
        place: the place in the queue (1 is next); None if the run started.
    """

    run: RunDirectory
    ticket: Ticket
    snapshot: QueueSnapshot
    place: int | None = None
    num_waiting: int = 0


class Scheduler:
    """Starts, queues and removes runs of one directory; thread-safe."""

    def __init__(
        self,
        runs_dir: Path,
        devices: QueueDevices,
        on_change: Callable[[Iterable[str]], None],
        engine: Engine | None = None,
        *,
        has_login: bool = False,
        reclaim_gpus: Callable[[Collection[str]], None] = lambda _gpus: None,
    ) -> None:
        """Read the stored queue.

        Args:
            reclaim_gpus: frees GPUs, by UUID, that are in use by `with_free_gpus`, before they are allocated.
        """
        self.cpu_ranks = devices.cpu_ranks
        self._has_login = has_login
        self._runs_dir = runs_dir
        self._queue_store = QueueStore(runs_dir)
        self._reader = SnapshotReader(runs_dir, devices, self._threads_per_rank)
        self._engine = engine or LocalEngine()
        self._on_change = on_change
        self._reclaim_gpus = reclaim_gpus
        self._thread = PeriodicThread("queue", self._run_once)
        self._starter = Starter(self._engine, self._thread.wake)
        self._searched_at = float("-inf")
        self._must_poll = True
        self._stopped_for_time: set[str] = set()
        # A user's change that could not be stored yet, for example because the disk is full.
        self._unstored_pause: bool | None = None
        # Number of queued runs at the last snapshot, available without I/O.
        self.num_waiting = 0
        # Number of changes made on this page. A view made before the last change is out of date.
        self.num_changes = 0

    # Queries

    def capacity(self, config: Config | None = None) -> Machine:
        """Return the resources that the engine offers a run, within the limits of this page."""
        offered = capacity.read(self._engine, config)
        num_by_programs, num_by_runs = (
            self._gpus_in_use() if offered.num_gpus and self._engine.is_this_machine else (0, 0)
        )
        return replace(
            offered,
            most_cpu_ranks=self.cpu_ranks,
            has_login=self._has_login,
            num_gpus_of_others=num_by_programs,
            num_gpus_of_runs=num_by_runs,
        )

    def placement_fields(self) -> Mapping[str, PlacementField]:
        """Return the fields, by name, with which a user selects where a run trains."""
        machine = self.capacity()
        if machine.num_nodes > 1 and "num_nodes" not in machine.placement_fields:
            return {**machine.placement_fields, "num_nodes": PlacementField(default=1)}
        return machine.placement_fields

    def _gpus_in_use(self) -> tuple[int, int]:
        """Return the number of GPUs that other programs use, and the number held by runs and checks."""
        try:
            situation = self.snapshot().situation
        except (QueueStoreError, OSError):  # `trouble` reports it
            return 0, 0
        free = Free.of(situation)
        num_others = len(free.shared_gpus)
        return num_others, len(situation.capacity.gpus) - len(free.gpus) - num_others

    def engine_queue(self) -> EngineQueue | None:
        """Return the engine's own queue; None if it has none."""
        return self._engine.queue()

    @property
    def has_engine_queue(self) -> bool:
        """True if the engine has its own queue, so that runs are submitted to it immediately."""
        return not self._engine.is_this_machine

    def kind_to_wait_for(self, kind: DeviceKind) -> DeviceKind:
        """Return the device kind that a run waits for here: "cpu" if the engine's queue allocates GPUs."""
        return kind if self._engine.is_this_machine else "cpu"

    def check_disk_space(self, person: str) -> None:
        """Raise ValueError if this user (empty without login) may store no further run."""
        starter.check_disk_space(self._runs_dir, person, self._queue_store.read().limits)

    def start(self, plan: Startable, owner: str, *, uses_occupied_gpus: bool = False) -> StartResult:
        """Create a run, and start or queue it.

        Args:
            plan: its configuration was checked by `check_engine_support`.

        Raises:
            ValueError: if the user is not allowed to start it, or the run could never start.
            StartError: if the engine refuses it.
        """
        self.check_disk_space(owner)  # before locking the queue, because this measures all runs of the owner
        ticket = replace(self._make_ticket(plan, owner), uses_occupied_gpus=uses_occupied_gpus)
        with self._queue_store.open() as state:
            snapshot = self._update_from_snapshot(state)
            starter.check_limits(snapshot.situation, ticket)
            placements: list[StartResult] = []

            def fill(run: RunDirectory) -> None:
                placements.append(self._allocate_or_queue(state, snapshot, run, ticket))
                tickets.write_queued(run, placements[0].ticket)

            launcher.create(self._runs_dir, plan, owner, fill)
        return self._launch_if_granted(placements[0])

    def resume(self, run: RunDirectory, resume_step: int, plan: Startable, owner: str) -> StartResult:
        """Resume an ended run from a checkpoint, or queue it; see `start`.

        Raises:
            ValueError: if the user is not allowed to resume it, the run could never start, or it is live.
            StartError: if the engine refuses it.
        """
        old_config = run.read_config()
        config_before = None if plan.config == old_config else old_config.to_json()
        ticket = replace(self._make_ticket(plan, owner), resume_step=resume_step, config_before=config_before)
        with self._queue_store.open() as state:
            # Take the snapshot before locking the run: a locked run counts as live.
            snapshot = self._update_from_snapshot(state)
            starter.check_limits(snapshot.situation, ticket)
            with run.owned():
                if run.queued.exists():
                    raise ValueError(f"run {run.run_id} is already in the queue")
                placement = self._allocate_or_queue(state, snapshot, run, ticket)
                if config_before is not None:
                    json_files.write_json_atomically(run.config, plan.config.to_json())
                tickets.write_queued(run, placement.ticket)
        return self._launch_if_granted(placement)

    def _make_ticket(self, plan: Startable, owner: str) -> Ticket:
        kind = self.kind_to_wait_for("cuda" if plan.device_kind == "cuda" else "cpu")
        num_ranks = plan.config.world_size
        return Ticket(person=owner, kind=kind, num_ranks=num_ranks, asked_unix_s=time.time())

    def check_engine_support(self, config: Config) -> None:
        """Raise a ConfigError if the engine does not support the configuration."""
        if problems := self._engine.check(config):
            raise ConfigError(problems)

    def _launch_if_granted(self, placement: StartResult) -> StartResult:
        """Start a run that has a grant; a later pass starts a run without one."""
        if placement.place is None:
            self._launch(placement.run, placement.ticket).result()
            self._engine.preparation.note_running(True)
        else:
            self.num_waiting = max(self.num_waiting, placement.num_waiting)
            self._thread.wake()
        self._note_change(placement.run)
        return placement

    def _note_change(self, run: RunDirectory) -> None:
        self.num_changes += 1
        self._on_change([run.run_id])

    def _launch(self, run: RunDirectory, ticket: Ticket) -> Future[None]:
        assert ticket.grant is not None
        self._reclaim_gpus([gpu.uuid for gpu in ticket.grant.gpus])
        return self._starter.launch(run, ticket)

    # Changes by users and teachers

    def remove_from_queue(self, run: RunDirectory) -> State | None:
        """Remove a run from the queue; return its state, or None if it was no longer queued."""
        # Change only the ticket, which the run's lock protects; the next pass updates the stored state.
        state = starter.remove_from_queue(run)
        self._thread.wake()
        self._note_change(run)
        return state

    def move(self, run_id: str, place: int) -> list[str]:
        """Move a run to a place in the queue (1 is next); return the new order.

        Raises:
            ValueError: if it is not queued.
        """
        with self._edit_state() as state:
            order = _order(self._update_from_snapshot(state))
            if run_id not in order:
                raise ValueError(f"run {run_id} is not in the queue: only a queued run can be moved")
            was_at = order.index(run_id) + 1
            order.remove(run_id)
            place = min(max(1, place), len(order) + 1)
            order.insert(place - 1, run_id)
            # Runs that are now ahead of it keep their places; the rule orders the runs behind it.
            state.first = order[: max(place, was_at)]
        return order

    def pause(self, is_paused: bool) -> None:
        """Pause or resume the queue. This takes effect even if it cannot be stored.

        Raises:
            OSError: if it cannot be stored now; the next pass retries.
        """
        self._unstored_pause = is_paused
        self.num_changes += 1
        with self._edit_state() as state:
            state.is_paused = is_paused

    def pause_unstored(self) -> None:
        """Pause the queue immediately, without I/O; the next pass stores it."""
        self._unstored_pause = True
        self.num_changes += 1

    def set_limits(self, person: str | None, limits: Limits | None) -> None:
        """Set the limits of a user (None removes them), or with `person=None` the default limits."""
        with self._edit_state() as state:
            state.limits = state.limits.changed(person, limits)

    def share_gpus(self, run: RunDirectory) -> None:
        """Let a queued run use GPUs that other programs are using.

        Raises:
            ValueError: if it is not queued.
        """
        with self._edit_state(), run.owned():
            ticket = tickets.read_queued(run)
            if ticket is None:
                raise ValueError(f"run {run.run_id} is not in the queue")
            tickets.write_queued(run, replace(ticket, uses_occupied_gpus=True))

    @contextlib.contextmanager
    def _edit_state(self) -> Iterator[QueueState]:
        """Yield the queue's state for changes, then run one scheduling pass."""
        with self._queue_store.open() as state:
            yield state
        self.num_changes += 1
        self.tick()

    def with_gpus(self, start: Callable[[Collection[str], Collection[str]], Result]) -> Result:
        """Call `start(free, granted)` with the UUIDs of GPUs without and with a run, and return its result.

        No GPU is allocated during the call.

        Raises:
            ValueError: if the stored queue is invalid.
        """
        with self._queue_store.open() as state:
            snapshot = self._update_from_snapshot(state)
            granted = {uuid for run in snapshot.situation.running for uuid in run.gpus}
            free = [gpu.uuid for gpu in snapshot.devices.gpus if gpu.uuid not in granted]
            result = start(free, sorted(granted))
            self._reclaim_gpus(free)
            return result

    def with_free_gpus(self, use: Callable[[Sequence[str]], None]) -> None:
        """Call `use(free)` with the UUIDs of GPUs that are unused and that no queued run waits for.

        No GPU is allocated during the call.
        """
        try:
            with self._queue_store.open() as state:
                situation = self._update_from_snapshot(state).situation
                is_needed = any(run.kind == "cuda" for run in situation.waiting)
                use([] if is_needed or not self._engine.is_this_machine else Free.of(situation).gpus)
        except (QueueStoreError, OSError):  # `trouble` reports it
            use([])

    # Snapshots

    def snapshot(self) -> QueueSnapshot:
        """Return a snapshot of the queue, without changing the stored state.

        Raises:
            QueueStoreError: if the stored queue is invalid.
        """
        unstored = self._unstored_pause  # read before the state, because a pass may store it meanwhile
        state = self._queue_store.read()
        if unstored is not None:
            state.is_paused = unstored
        return self._reader.take(state, time.time())

    def order(self) -> list[str]:
        """Return the ids of the queued runs, next one first."""
        return _order(self.snapshot())

    def _update_from_snapshot(self, state: QueueState) -> QueueSnapshot:
        now = time.time()
        if self._unstored_pause is not None:
            state.is_paused = self._unstored_pause
        snapshot = self._reader.take(state, now)
        self._reader.update_state(state, snapshot, now)
        state.ended = [span for span in state.ended if span.ended_unix_s > now - USAGE_WINDOW_S]
        return snapshot

    # The scheduler thread

    def begin(self) -> None:
        """Start the scheduler thread, which runs until `close`."""
        self._thread.begin()

    def close(self) -> None:
        """Stop the thread. Queued runs stay queued for the next page."""
        self._thread.close()

    @property
    def trouble(self) -> str | None:
        """Why no run can currently start from the queue, as text; None while the scheduler works."""
        return self._thread.trouble

    def tick(self) -> None:
        """Run one pass: record ended runs, start runs by the rule, stop runs over their time limit."""
        started = dict[str, Ticket]()
        with self._queue_store.open() as state:
            # Read before the state: this pass does not store a pause that arrives during the snapshot.
            unstored = self._unstored_pause
            snapshot = self._update_from_snapshot(state)
            for run_id, error in snapshot.broken.items():
                starter.mark_failed(self._run(run_id), error)
            cores_in_use = _cores_in_use(snapshot)
            for start in decide(snapshot.situation, time.time()):
                ticket = self._grant_devices(
                    self._run(start.run_id), snapshot.tickets[start.run_id], start, snapshot, cores_in_use
                )
                if ticket.kind == "cpu" and ticket.grant is not None:
                    cores_in_use += ticket.num_ranks * (ticket.grant.num_threads or 1)
                try:
                    if starter.write_grant(self._run(start.run_id), ticket):
                        started[start.run_id] = ticket
                except OSError as error:
                    self._reader.skip_stuck(start.run_id, error)
            state.waiting = [run_id for run_id in state.waiting if run_id not in started]
            state.running += started
            self.num_waiting = len(state.waiting)
            may_be_overdue = bool(state.running) and state.limits.has_time_limit
            self._engine.preparation.note_running(bool(state.running))
            self._must_poll = bool(state.waiting) or bool(snapshot.starting) or may_be_overdue
        if self._unstored_pause is unstored:  # unchanged during this pass, which has stored it
            self._unstored_pause = None
        for run_id, ticket in started.items():
            self._launch(self._run(run_id), ticket)
        self._stop_overdue(snapshot)
        if started:
            self._on_change(started)

    def _stop_overdue(self, snapshot: QueueSnapshot) -> None:
        """Stop runs that have reached their time limit, after a save."""
        now = time.time()
        for running in snapshot.situation.running:
            minutes = snapshot.situation.rules.limits_of(running.person).minutes_per_run
            if minutes is None or now - running.began_unix_s < 60 * minutes:
                continue
            start_key = f"{running.run_id} {running.began_unix_s}"
            if start_key not in self._stopped_for_time:
                self._stopped_for_time.add(start_key)
                reason = f"The run has reached the time limit of {minutes:g} minutes that a teacher has set."
                with contextlib.suppress(ValueError, OSError):  # the run may end at this moment
                    launcher.stop_or_kill(self._run(running.run_id), reason)

    def _run_once(self) -> float:
        if time.monotonic() - self._searched_at > SEARCH_EVERY_S:
            # Set the time first: a folder that cannot be searched must not delay known runs.
            self._searched_at = time.monotonic()
            self._search()
        self.tick()
        # The end of a run that this page started wakes this thread; other runs and time limits need polling.
        return POLL_EVERY_S if self._must_poll else SEARCH_EVERY_S

    def _search(self) -> None:
        """Find queued and live runs missing in the state, started from a terminal or by a killed page."""
        run_ids = self._reader.search()
        with self._queue_store.open() as state:
            state.waiting += sorted(run_ids - {*state.waiting, *state.running})

    def _run(self, run_id: str) -> RunDirectory:
        return RunDirectory(self._runs_dir / run_id)

    def _allocate_or_queue(
        self, state: QueueState, snapshot: QueueSnapshot, run: RunDirectory, ticket: Ticket
    ) -> StartResult:
        """Add a new run to the queue's state, with a grant if it can start now."""
        waiting = [*snapshot.situation.waiting, waiting_from_ticket(run.run_id, ticket)]
        snapshot = replace(snapshot, situation=replace(snapshot.situation, waiting=waiting))
        starts = decide(snapshot.situation, time.time())
        start = next((candidate for candidate in starts if candidate.run_id == run.run_id), None)
        if start is not None:
            state.running.append(run.run_id)
            ticket = self._grant_devices(run, ticket, start, snapshot, _cores_in_use(snapshot))
            return StartResult(run=run, ticket=ticket, snapshot=snapshot)
        state.waiting.append(run.run_id)
        order = _order(snapshot)
        place = order.index(run.run_id) + 1
        return StartResult(run=run, ticket=ticket, snapshot=snapshot, place=place, num_waiting=len(order))

    def _grant_devices(
        self,
        run: RunDirectory,
        ticket: Ticket,
        start: StartDecision,
        snapshot: QueueSnapshot,
        cores_in_use: int,
    ) -> Ticket:
        """Return a ticket with a grant of devices, threads and disk space for one start.

        If CPU ranks are limited, a rank stands for a core and gets one thread; otherwise a run can use all
        cores that no other run uses. A resumed run gets its checkpoint's number of threads, because a
        different number would change its results. OMP_NUM_THREADS overrides both. Each thread counts as a
        core in use.
        """
        num_threads = None
        if ticket.kind == "cpu" and self._engine.is_this_machine:
            num_cores = host.num_cores()
            max_threads = (
                1 if self.cpu_ranks is not None else max(1, (num_cores - cores_in_use) // ticket.num_ranks)
            )
            recorded_threads = manifests.recorded_threads(run, ticket.resume_step, ticket.num_ranks)
            if recorded_threads is not None and recorded_threads <= num_cores:
                max_threads = recorded_threads
            num_threads = threads.threads_from_environment() or max_threads
        checkpoint_bytes = self._disk_share_bytes(ticket.person, snapshot) if self._has_login else None
        gpus = {gpu.uuid: gpu for gpu in snapshot.devices.gpus}
        grant = Grant(
            token=uuid.uuid4().hex,
            granted_unix_s=time.time(),
            gpus=tuple(gpus[name] for name in start.gpus),
            num_threads=num_threads,
            checkpoint_bytes=checkpoint_bytes,
        )
        return replace(ticket, grant=grant)

    def _threads_per_rank(self) -> int:
        """Return OMP_NUM_THREADS, which applies to each CPU rank of this page; 1 if it is not set."""
        return (threads.threads_from_environment() or 1) if self._engine.is_this_machine else 1

    def _disk_share_bytes(self, person: str, snapshot: QueueSnapshot) -> int:
        """Return the maximum total size in bytes of a run's checkpoints."""
        free_bytes, reserve_bytes = rundir.disk_space(self._runs_dir)
        share_bytes = max(0, free_bytes - reserve_bytes) // SHARES_OF_DISK
        limit = snapshot.situation.rules.limits_of(person).disk_bytes
        return share_bytes if limit is None else min(share_bytes, limit)


def _order(snapshot: QueueSnapshot) -> list[str]:
    return [run.run_id for run in queue_order(snapshot.situation, time.time())]


def _cores_in_use(snapshot: QueueSnapshot) -> int:
    return sum(run.num_cores for run in snapshot.situation.running if run.kind == "cpu")
