"""The tickets of queued and started runs: the resources requested by a run, and those granted to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainers.contract.rundir import RunDirectory
from trainers.files import typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.typed import Count, PositiveCount

log = logging.getLogger(__name__)

DeviceKind = Literal["cuda", "cpu"]


class TicketError(ValueError):
    """The ticket does not belong to this start, or cannot be read."""


@dataclass(frozen=True, kw_only=True)
class GrantedGpu:
    """A GPU by its index on the machine and its CUDA UUID."""

    index: int
    uuid: str


@dataclass(frozen=True, kw_only=True)
class Grant:
    """The resources that a run got when it was started; the token is unique to that start.

    `num_threads` is the limit for each rank on the CPU, `checkpoint_bytes` the limit for all its checkpoints
    together; None means no limit.
    """

    token: str
    granted_unix_s: float
    gpus: tuple[GrantedGpu, ...]
    num_threads: Count | None = None
    checkpoint_bytes: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A queued run's request for resources, and later its grant.

    Attributes:
        person: the run's owner; empty if no login is required.
        resume_step: the checkpoint to resume from; None starts at the beginning.
        uses_occupied_gpus: True if the run may use GPUs on which other users' processes run.
        config_before: the configuration to restore if the run is removed from the queue.
    """

    person: str
    kind: DeviceKind
    num_ranks: PositiveCount
    asked_unix_s: float
    resume_step: int | None = None
    uses_occupied_gpus: bool = False
    config_before: Mapping[str, Any] | None = None
    grant: Grant | None = None


def read_queued(run: RunDirectory) -> Ticket | None:
    """Return the ticket of a queued run, or None if the run is not queued.

    Raises:
        TicketError: if it is invalid.
    """
    return _read(run.queued)


def read_granted(run: RunDirectory) -> Ticket | None:
    """Return the ticket a run was started with, or None if it was not started from the queue.

    Raises:
        TicketError: if it is invalid.
    """
    return _read(run.granted)


def granted_checkpoint_bytes(run: RunDirectory) -> int | None:
    """Return the queue's limit for the checkpoints of a run, in bytes, or None; also if it cannot be read."""
    try:
        ticket = read_granted(run)
    except TicketError as error:
        log.warning("cannot read the run's disk share: %s", error)
        return None
    return None if ticket is None or ticket.grant is None else ticket.grant.checkpoint_bytes


def write_queued(run: RunDirectory, ticket: Ticket) -> None:
    """Write a run's ticket. If the run exists already, the caller must hold its lock."""
    write_json_atomically(run.queued, asdict(ticket))


def claim_ticket(run: RunDirectory, token: str | None) -> None:
    """Check that the ticket names this start; the caller holds the run's lock.

    Without a token, the run was started outside of the queue, so its ticket is deleted.

    Raises:
        TicketError: if the ticket names another start, or the run was removed from the queue.
    """
    if token is None:
        run.queued.unlink(missing_ok=True)
        run.granted.unlink(missing_ok=True)
        return
    ticket = read_queued(run)
    if ticket is None or ticket.grant is None or ticket.grant.token != token:
        raise TicketError(f"run {run.run_id} was removed from the queue, or started in another way")


def close_ticket(run: RunDirectory) -> None:
    """Turn the ticket into the record of granted resources, after the status has become "starting"."""
    if run.queued.exists():
        run.queued.rename(run.granted)


def _read(path: Path) -> Ticket | None:
    try:
        raw = read_json(path, must_be_ours=True)
        ticket = typed.read(Ticket, raw)
        if "grant" not in raw:
            raise ValueError("grant is missing; allowed: an object or null")
        return ticket
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TicketError(f"{path.name} of run {path.parent.name} is invalid: {error}") from error
