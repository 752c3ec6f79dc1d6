"""A run's place in the queue: `queued.json` while it waits, `granted.json` once it was started from there.

Both are one ticket. The page writes it, and changes it only while it holds the run's lock; the supervisor
that was started for it takes the lock for good, checks that the ticket still names it, and renames it.
So a run that waits is started once, whatever is killed in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically

DeviceKind = Literal["cuda", "cpu"]


class TicketError(ValueError):
    """The ticket is not the one this start was made for, or cannot be read."""


@dataclass(frozen=True, kw_only=True)
class GrantedGpu:
    """A GPU by its index on the machine and by the name CUDA knows it by."""

    index: int
    uuid: str


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a run was given when it was started; the token is that start's own.

    `num_threads` is the most for each rank on the CPU, `checkpoint_bytes` the most that its checkpoints may
    take together; None is no limit.
    """

    token: str
    granted_unix_s: float
    gpus: tuple[GrantedGpu, ...] = ()
    num_threads: int | None = None
    checkpoint_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a run waits for, and since when.

    Attributes:
        person: whose run it is; empty where nobody has to log in.
        resume_step: the checkpoint it goes on from; None starts at the beginning.
        uses_occupied_gpus: GPUs on which somebody else's process is will do.
        config_before: the configuration to go back to when it is taken out of the queue.
    """

    person: str
    kind: DeviceKind
    num_ranks: int
    asked_unix_s: float
    resume_step: int | None = None
    uses_occupied_gpus: bool = False
    config_before: Mapping[str, Any] | None = None
    grant: Grant | None = None


def read_queued(run: RunDirectory) -> Ticket | None:
    """Return the ticket of a run that waits; None when it does not.

    Raises:
        TicketError: when it makes no sense.
    """
    return _read(run.queued)


def read_granted(run: RunDirectory) -> Ticket | None:
    """Return the ticket a run was started with; None when it was not started from the queue.

    Raises:
        TicketError: when it makes no sense.
    """
    return _read(run.granted)


def write_queued(run: RunDirectory, ticket: Ticket) -> None:
    """Write a run's ticket; of a run that is there already only while holding its lock."""
    write_json_atomically(run.queued, asdict(ticket))


def claim(run: RunDirectory, token: str | None) -> None:
    """Check, holding the run's lock, that this start is the one the ticket names.

    Without a token the run was started by hand: then it waits no longer, whatever its ticket says.

    Raises:
        TicketError: when another start was made for it, or it was taken out of the queue.
    """
    if token is None:
        run.queued.unlink(missing_ok=True)
        run.granted.unlink(missing_ok=True)
        return
    ticket = read_queued(run)
    if ticket is None or ticket.grant is None or ticket.grant.token != token:
        raise TicketError(f"run {run.run_id} was removed from the queue, or started in another way")


def leave_line(run: RunDirectory) -> None:
    """Turn the ticket into the record of what the run was given; its status says by now that it starts."""
    if run.queued.exists():
        run.queued.rename(run.granted)


def _read(path: Path) -> Ticket | None:
    try:
        return _checked(read_json(path, must_be_ours=True))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise TicketError(f"{path.name} of run {path.parent.name} is invalid: {error}") from error


def _checked(raw: Any) -> Ticket:
    """Return what a ticket's JSON says.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: where it is of another kind.
    """
    grant = None if raw["grant"] is None else _checked_grant(raw["grant"])
    ticket = Ticket(**raw | {"grant": grant})
    texts = isinstance(ticket.person, str) and ticket.kind in ("cuda", "cpu")
    numbers = type(ticket.num_ranks) is int and ticket.num_ranks >= 1 and _is_time(ticket.asked_unix_s)
    step = ticket.resume_step is None or type(ticket.resume_step) is int
    before = ticket.config_before is None or isinstance(ticket.config_before, dict)
    if not (texts and numbers and step and before and isinstance(ticket.uses_occupied_gpus, bool)):
        raise ValueError("a field of the wrong kind")
    return ticket


def _checked_grant(raw: Any) -> Grant:
    gpus = tuple(GrantedGpu(**gpu) for gpu in raw["gpus"])
    grant = Grant(**raw | {"gpus": gpus})
    limits = (grant.num_threads, grant.checkpoint_bytes)
    if not all(limit is None or (type(limit) is int and limit >= 0) for limit in limits):
        raise ValueError("a limit of the wrong kind in its grant")
    named = all(type(gpu.index) is int and isinstance(gpu.uuid, str) for gpu in gpus)
    if not (named and isinstance(grant.token, str) and _is_time(grant.granted_unix_s)):
        raise ValueError("a field of the wrong kind in its grant")
    return grant


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
