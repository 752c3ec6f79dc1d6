"""This rank's heartbeat: one line wherever training gets on, by which a hang is told from a long step."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta

from trainers.contract.config import Config
from trainers.engines.heartbeats.heartbeat_board import ADDRESS, BUSY_FACTOR, DOING, STARTING, Place

STACKS_SIGNAL = signal.SIGUSR2
UNWATCHED_PATIENCE = timedelta(seconds=60)
# One rank may find in a cache what another compiles: an evaluation's shapes, an uneven last batch.
COMPILERS_PATIENCE = timedelta(minutes=10)
FOR_EVER = timedelta(days=30)

_PR_SET_PTRACER = 0x59616D61
_place = Place(None, 0)


def begin() -> None:
    """Beat from now on to the supervisor, where there is one, and let it look at this rank's stacks."""
    global _place
    address = os.environ.get(ADDRESS)
    _place = Place(address, int(os.environ["RANK"]))
    beat(STARTING)
    # On this signal every thread's stack goes into the rank's log, also while it stands in compiled code.
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr.fileno(), all_threads=True)
    if address is not None and sys.platform.startswith("linux"):
        # Where a process may be read by its ancestors only (Yama), the supervisor's helper may do so too.
        supervisor_pid = int(address.split("/")[2])
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, supervisor_pid, 0, 0, 0)


def patience(config: Config) -> timedelta:
    """Return how long a rank waits for the others before it gives up by itself.

    Where a supervisor listens, it finds a hang sooner, says more, and knows a long step for what it is.
    """
    if ADDRESS not in os.environ:
        return COMPILERS_PATIENCE if config.compile else UNWATCHED_PATIENCE
    if config.on_hang == "wait":
        return FOR_EVER
    return timedelta(seconds=BUSY_FACTOR * config.hang_limit_s) + UNWATCHED_PATIENCE


def beat(doing: int, step: int | None = None) -> None:
    """Say that this rank goes on: with what, and the newest step it has done."""
    _place.beat(doing, step)


def doing() -> str:
    """Return what this rank is doing, in the words of `DOING`."""
    return DOING[_place.doing]


def note_gpu() -> None:
    """Say that this rank drives a GPU: waiting for it looks like work."""
    _place.note_gpu()


def answer_when_asked(say: Callable[[], bytes]) -> None:
    """Tell the supervisor, when it asks, which collectives this rank is in; any thread may call it."""
    if _place.is_asked:
        _place.answer(say())
