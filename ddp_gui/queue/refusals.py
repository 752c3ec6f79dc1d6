"""What is refused at Start, with the reason: beyond the machine, or beyond a person's limits."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ddp_gui.auth import owners
from ddp_gui.devices import disk
from ddp_gui.queue.person_limits import Limits, Rules
from ddp_gui.queue.policy import Capacity, Situation
from trainers.contract import events, run_ids, rundir
from trainers.contract.config import ConfigError, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import Ticket
from trainers.engines import liveness

MAX_NAMED = 3
GB = 1e9


def refuse(situation: Situation, ticket: Ticket) -> None:
    """Check that a run can start at some time, and that its owner may queue it.

    Raises:
        ValueError: naming what is too much, and what is allowed.
    """
    limits = situation.rules.of(ticket.person)
    most = _most_ranks(ticket, situation.capacity, limits)
    if most is not None and ticket.num_ranks > most[0]:
        allowed = f"a whole number from 1 to {most[0]}: {most[1]}"
        raise ConfigError([Problem(field="nproc_per_node", value=ticket.num_ranks, allowed=allowed)])
    num_queued = sum(run.person == ticket.person for run in situation.waiting)
    if limits.num_waiting is not None and num_queued >= limits.num_waiting:
        raise ValueError(
            f"You have {_runs(num_queued)} in the queue, and your limit is {limits.num_waiting}: wait until "
            "one has started, or remove one"
        )


def _most_ranks(ticket: Ticket, capacity: Capacity, limits: Limits) -> tuple[int, str] | None:
    """Return the most ranks a run can have, and why; None if only the machine limits it."""
    found = []
    if ticket.kind == "cpu" and capacity.cpu_ranks is not None:
        found.append((capacity.cpu_ranks, "the most CPU ranks that this page allows"))
    if ticket.kind == "cuda" and capacity.gpus:
        found.append((len(capacity.gpus), "the GPUs that this page may use"))
    if limits.num_ranks is not None:
        found.append((limits.num_ranks, "your limit for all your runs together"))
    return min(found, default=None)


def refuse_for_disk(runs_dir: Path, person: str, rules: Rules) -> None:
    """Check that the disk has its reserve, and that a person's runs are below the limit, if there is one.

    Raises:
        ValueError: naming how much is stored, what is allowed, and what to delete.
    """
    free, reserve = rundir.disk_room(disk.nearest_folder(runs_dir))
    if free < reserve:
        raise ValueError(
            f"the disk of {runs_dir} has {_size(free)} left, and {_size(reserve)} stay free for the page and "
            "live runs, so no run is started: delete runs that are no longer needed and empty the bin"
        )
    most = rules.of(person).disk_bytes
    if most is None:
        return
    sizes = bytes_by_run(runs_dir, person)
    total = sum(sizes.values())
    if total < most:
        return
    raise ValueError(
        f"Your runs use {_size(total)} of disk, and your limit is {_size(most)}: delete some and empty the "
        "bin. "
        f"{_largest(runs_dir, sizes)}"
    )


def bytes_by_run(runs_dir: Path, person: str) -> dict[str, int]:
    """Return what each run of a person takes on the disk; those in the bin count too."""
    found = {}
    for folder in (runs_dir, runs_dir / ".bin"):
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            run = RunDirectory(path)
            with contextlib.suppress(OSError):  # not readable: its owner is unknown
                is_run = run_ids.is_run_id(path.name.partition("~")[0]) and run.config.is_file()
                if is_run and (owners.owner_of(run) or "") == person:
                    found[str(path.relative_to(runs_dir))] = disk.taken_bytes(path)
    return found


def _largest(runs_dir: Path, sizes: dict[str, int]) -> str:
    """Name the largest runs that can be deleted now."""
    ended = [name for name in sizes if _has_ended(RunDirectory(runs_dir / name))]
    largest = sorted(ended, key=lambda name: -sizes[name])[:MAX_NAMED]
    if not largest:
        return "All of them are still running."
    named = [f"{_in_words(name)} ({_size(sizes[name])})" for name in largest]
    return f"The largest: {', '.join(named)}."


def _has_ended(run: RunDirectory) -> bool:
    try:
        return liveness.read_status(run).state not in events.LIVE_STATES
    except (OSError, ValueError):
        return False  # its files are invalid


def _in_words(name: str) -> str:
    folder, _, run_id = name.rpartition("/")
    return f"{run_id} in the bin" if folder else run_id


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GB:.2f} GB" if size_bytes >= GB / 10 else f"{size_bytes / 1e6:.1f} MB"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
