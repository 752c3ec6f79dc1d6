"""The queue in front of launching: whoever asks is started at once where there is room, or else waits.

Every page on a runs directory keeps the same line. Whoever changes it, or starts somebody from it, holds
the `store` meanwhile, so that they never do it at the same time; and what a killed page left
half done, the next look at the runs' own files puts right.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ddp_gui.devices import capacity
from ddp_gui.devices.capacity import Machine
from ddp_gui.launch import launcher
from ddp_gui.plan.plan import Plan
from ddp_gui.queue import refusals, starter
from ddp_gui.queue.devices import Devices
from ddp_gui.queue.person_limits import Limits
from ddp_gui.queue.policy import decide, in_order
from ddp_gui.queue.snapshot import Snapshot, SnapshotReader, waiting_with
from ddp_gui.queue.starter import Starter
from ddp_gui.queue.store import QueueState, QueueStore, trim
from trainers.contract import tickets
from trainers.contract.config import ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import DeviceKind, Ticket
from trainers.engines.base import Engine
from trainers.engines.local.engine import LocalEngine
from trainers.files import json_files
from trainers.machine.passes import Passes

Result = TypeVar("Result")

POLL_EVERY_S = 1.0
SEARCH_EVERY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Placed:
    """What became of asking: the run, and its place in the queue, 1 being the next; None is started."""

    run: RunDirectory
    place: int | None
    num_waiting: int


class Scheduler:
    """Starts, queues and takes out runs of one directory; safe to be called by several threads."""

    def __init__(
        self,
        runs_dir: Path,
        devices: Devices,
        on_change: Callable[[Iterable[str]], None],
        engine: Engine | None = None,
    ) -> None:
        self.cpu_ranks = devices.cpu_ranks
        self._runs_dir = runs_dir
        self._keeper = QueueStore(runs_dir)
        self._reader = SnapshotReader(runs_dir, devices)
        self._engine = engine or LocalEngine()
        self._starter = Starter(self._engine, self._on_end)
        self._on_change = on_change
        self._passes = Passes("queue", self._pass)
        self._searched_at = float("-inf")
        self._has_to_watch = True
        self._told_to_stop: set[str] = set()
        # As it was seen last; to be had without a look at the disk.
        self.num_waiting = 0

    # Asking

    def capacity(self) -> Machine:
        """Return what its engine can give a run, within what this page hands out."""
        return replace(capacity.read(self._engine), most_cpu_ranks=self.cpu_ranks)

    def start(self, plan: Plan, owner: str, *, uses_occupied_gpus: bool = False) -> Placed:
        """Create a run and start it, now or when its turn comes.

        Raises:
            ValueError: when it may not, or could never be started.
            StartError: when its engine does not take it.
        """
        self._refuse_for_engine(plan)
        refusals.refuse_for_disk(self._runs_dir, owner, self._keeper.read().rules)
        ticket = replace(_ticket(plan, owner), uses_occupied_gpus=uses_occupied_gpus)
        with self._keeper.open() as state:
            snapshot = self._snapshot_into(state)
            refusals.refuse(snapshot.situation, ticket)
            placed: list[Ticket] = []

            def fill(run: RunDirectory) -> None:
                placed.append(_place(state, snapshot, run, ticket))
                tickets.write_queued(run, placed[0])

            run = launcher.create(self._runs_dir, plan, owner, fill)
        return self._go(run, placed[0])

    def resume(self, run: RunDirectory, resume_step: int, plan: Plan, owner: str) -> Placed:
        """Start an ended run again from a checkpoint, now or when its turn comes.

        Raises:
            ValueError: when it may not, or could never be started, or goes on already.
            StartError: when its engine does not take it.
        """
        self._refuse_for_engine(plan)
        before = run.read_config()
        kept = None if plan.config == before else before.to_json()
        ticket = replace(_ticket(plan, owner), resume_step=resume_step, config_before=kept)
        with self._keeper.open() as state:
            # Before its lock is held here: a run that is locked goes on.
            snapshot = self._snapshot_into(state)
            refusals.refuse(snapshot.situation, ticket)
            with starter.holding(run):
                if run.queued.exists():
                    raise ValueError(f"run {run.run_id} is already in the queue")
                placed = _place(state, snapshot, run, ticket)
                if kept is not None:
                    json_files.write_json_atomically(run.config, plan.config.to_json())
                tickets.write_queued(run, placed)
        return self._go(run, placed)

    def _refuse_for_engine(self, plan: Plan) -> None:
        """Raise a ConfigError for what the engine cannot do."""
        if problems := self._engine.check(plan.config):
            raise ConfigError(problems)

    def _go(self, run: RunDirectory, ticket: Ticket) -> Placed:
        """Start a run that was given what it needs; else return its place."""
        if ticket.grant is None:
            self._passes.wake()
        else:
            self._starter.launch(run, ticket).result()
            self._note_running(True)
        self._on_change([run.run_id])
        order = [] if ticket.grant is not None else self.order()
        self.num_waiting = max(self.num_waiting, len(order))
        place = order.index(run.run_id) + 1 if run.run_id in order else None
        return Placed(run=run, place=place, num_waiting=len(order))

    # Leaving, and what a teacher does

    def take_out(self, run: RunDirectory) -> bool:
        """Take a run out of the queue; tell whether it was still in it."""
        with self._changing():
            was_waiting = starter.take_out(run)
        self._on_change([run.run_id])
        return was_waiting

    def move(self, run_id: str, place: int) -> list[str]:
        """Put a run at a place in the queue, 1 being the next; return the queue's order.

        Raises:
            ValueError: when it does not wait.
        """
        with self._changing() as state:
            order = self._order(self._snapshot_into(state))
            if run_id not in order:
                raise ValueError(f"run {run_id} is not in the queue: only a queued run can be moved")
            was_at = order.index(run_id) + 1
            order.remove(run_id)
            place = min(max(1, place), len(order) + 1)
            order.insert(place - 1, run_id)
            # What is ahead of it now stays there; behind it the rule goes on as before.
            state.first = order[: max(place, was_at)]
        return order

    def pause(self, is_paused: bool) -> None:
        """Let nobody start from the queue, or go on with it."""
        with self._changing() as state:
            state.is_paused = is_paused

    def set_limits(self, person: str | None, limits: Limits | None) -> None:
        """Set the limits of a person, or of everybody; None takes a person's own away."""
        with self._changing() as state:
            state.rules = state.rules.changed(person, limits)

    def share_gpus(self, run: RunDirectory) -> None:
        """Let a run that waits take GPUs on which somebody else's process is.

        Raises:
            ValueError: when it does not wait.
        """
        with self._changing(), starter.holding(run):
            ticket = tickets.read_queued(run)
            if ticket is None:
                raise ValueError(f"run {run.run_id} is not in the queue")
            tickets.write_queued(run, replace(ticket, uses_occupied_gpus=True))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[QueueState]:
        """Give the queue's state to be changed, then act on it at once."""
        with self._keeper.open() as state:
            yield state
        self.tick()

    def with_gpus(self, start: Callable[[Collection[str], Collection[str]], Result]) -> Result:
        """Return `start(free, granted)`, with the UUIDs of the GPUs that no run has, and of the others.

        No run is given any meanwhile.

        Raises:
            ValueError: when the stored queue is invalid.
        """
        with self._keeper.open() as state:
            snapshot = self._snapshot_into(state)
            granted = {uuid for run in snapshot.situation.running for uuid in run.gpus}
            return start(
                [gpu.uuid for gpu in snapshot.devices.gpus if gpu.uuid not in granted], sorted(granted)
            )

    # Looking

    def snapshot(self) -> Snapshot:
        """Return the queue as it is, without changing anything.

        Raises:
            QueueStoreError: when the stored queue is invalid.
        """
        return self._reader.take(self._keeper.read(), time.time())

    def order(self) -> list[str]:
        """Return the runs that wait, the next one first."""
        return self._order(self.snapshot())

    def _order(self, snapshot: Snapshot) -> list[str]:
        return [run.run_id for run in in_order(snapshot.situation, time.time())]

    def _snapshot_into(self, state: QueueState) -> Snapshot:
        now = time.time()
        snapshot = self._reader.take(state, now)
        self._reader.note(state, snapshot, now)
        trim(state, now)
        return snapshot

    # Going on by itself

    def begin(self) -> None:
        """Watch the queue from now on, in a thread, until `close`."""
        self._passes.begin()

    def close(self) -> None:
        """End the watching; who waits goes on waiting, and the next page goes on with the queue."""
        self._passes.close()

    @property
    def is_alive(self) -> bool:
        """Whether the thread that keeps the queue is there."""
        return self._passes.is_alive

    @property
    def trouble(self) -> str | None:
        """Why nobody starts from the queue now, in words; None while it is looked after."""
        return self._passes.trouble

    def tick(self) -> None:
        """Look who has ended, start whom the rule names, stop who has had enough time."""
        begun = dict[str, Ticket]()
        with self._keeper.open() as state:
            snapshot = self._snapshot_into(state)
            for run_id, error in snapshot.broken.items():
                starter.set_aside(self._run(run_id), error)
            for start in decide(snapshot.situation, time.time()):
                ticket = starter.granted(snapshot.tickets[start.run_id], start, snapshot.devices)
                try:
                    if starter.write_grant(self._run(start.run_id), ticket):
                        begun[start.run_id] = ticket
                except OSError as error:
                    self._reader.note_stuck(start.run_id, error)
            state.waiting = [run_id for run_id in state.waiting if run_id not in begun]
            state.running += begun
            self.num_waiting = len(state.waiting)
            may_be_overdue = bool(state.running) and state.rules.limit_time
            self._note_running(bool(state.running))
            self._has_to_watch = bool(state.waiting) or bool(snapshot.starting) or may_be_overdue
        for run_id, ticket in begun.items():
            self._starter.launch(self._run(run_id), ticket)
        self._stop_overdue(snapshot)
        if begun:
            self._on_change(begun)

    def _stop_overdue(self, snapshot: Snapshot) -> None:
        """Stop, with a save, who has had as many minutes as a run may have."""
        now = time.time()
        for running in snapshot.situation.running:
            minutes = snapshot.situation.rules.of(running.person).minutes_per_run
            if minutes is None or now - running.began_unix_s < 60 * minutes:
                continue
            start = f"{running.run_id} {running.began_unix_s}"
            if start not in self._told_to_stop:
                self._told_to_stop.add(start)
                why = f"A run may take at most {minutes:g} minutes here: a teacher set this limit."
                with contextlib.suppress(ValueError, OSError):  # it ends by itself at this moment
                    launcher.stop(self._run(running.run_id), save=True, why=why)

    def _pass(self) -> float:
        if time.monotonic() - self._searched_at > SEARCH_EVERY_S:
            # Before it: a folder that cannot be searched keeps nobody who is known from starting.
            self._searched_at = time.monotonic()
            self._search()
        self.tick()
        # Who ends and was started here wakes us; of others, and of time that runs out, nothing tells.
        return POLL_EVERY_S if self._has_to_watch else SEARCH_EVERY_S

    def _search(self) -> None:
        """Find who waits or goes on and is not in the state: started by hand, or by a killed page."""
        found = self._reader.search()
        with self._keeper.open() as state:
            state.waiting += sorted(found - {*state.waiting, *state.running})

    def _note_running(self, is_anything_running: bool) -> None:
        self._engine.note_running(is_anything_running)

    def _on_end(self) -> None:
        self._passes.wake()

    def _run(self, run_id: str) -> RunDirectory:
        return RunDirectory(self._runs_dir / run_id)


def _ticket(plan: Plan, owner: str) -> Ticket:
    kind: DeviceKind = "cuda" if plan.device_kind == "cuda" else "cpu"
    num_ranks = plan.config.world_size
    return Ticket(person=owner, kind=kind, num_ranks=num_ranks, asked_unix_s=time.time())


def _place(state: QueueState, snapshot: Snapshot, run: RunDirectory, ticket: Ticket) -> Ticket:
    """Note a new run in the queue's state; return its ticket, with a grant where it is its turn at once."""
    waiting = [*snapshot.situation.waiting, waiting_with(run.run_id, ticket)]
    starts = decide(replace(snapshot.situation, waiting=waiting), time.time())
    start = next((each for each in starts if each.run_id == run.run_id), None)
    if start is None:
        state.waiting.append(run.run_id)
        return ticket
    state.running.append(run.run_id)
    return starter.granted(ticket, start, snapshot.devices)
