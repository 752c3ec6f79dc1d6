"""A rank's heartbeats in shared memory, and its answers about its collectives.

The supervisor creates one memory file. Ranks find it through the environment variable named `ADDRESS` and map
it. Layout for N ranks: N slots of `NUMBERS` 64-bit integers, then N buffers of `MAX_ANSWER_BYTES`. No locks
are needed, because each number has one writer: the supervisor writes `REQUESTED`, the rank writes the rest. A
heartbeat is three stores into mapped memory: cheap enough for several per step.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from trainers.files import typed
from trainers.files.json_files import parse_json
from trainers.files.plain_files import map_file
from trainers.machine import facilities

if TYPE_CHECKING:
    from trainers.contract.config import Config

ADDRESS = "TRAINERS_HEARTBEATS"

# Activities of a rank, worded to follow "at step 7, …".
ACTIVITIES = (
    "starting",
    "building the job",
    "fetching data",
    "in forward and backward",
    "in the optimizer step",
    "exchanging reports with the other ranks",
    "evaluating",
    "making a sample",
    "saving",
    "ending",
)
(
    STARTING,
    BUILDING,
    FETCHING,
    COMPUTING,
    STEPPING,
    REPORTING,
    EVALUATING,
    SAMPLING,
    SAVING,
    ENDING,
) = range(len(ACTIVITIES))

COUNT, PID, STEP, ACTIVITY, ON_GPU, REQUESTED, ANSWERED, ANSWER_SIZE = range(8)
NUMBERS = 8
SLOT_BYTES = NUMBERS * 8
# The maximum size of an answer. Each process group takes a few hundred bytes.
MAX_ANSWER_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The latest heartbeat of a rank.

    Attributes:
        step: The last completed step.
        doing: Index into `ACTIVITIES`.
        is_on_gpu: True if the rank drives a GPU. Waiting for a GPU is busy waiting: it uses a core
            completely, so CPU time proves no progress.
    """

    count: int
    pid: int
    step: int
    doing: int
    is_on_gpu: bool = False

    @property
    def activity(self) -> str:
        """Activity of the rank, as text."""
        return ACTIVITIES[self.doing] if self.doing < len(ACTIVITIES) else ACTIVITIES[STARTING]


class HeartbeatSlot:
    """Writes one rank's slot in the memory file."""

    def __init__(self, address: str | None, rank: int) -> None:
        """Map this rank's slot. Without an address, heartbeats are discarded.

        Raises:
            OSError: If the memory file does not exist.
        """
        if address is None:
            memory, num_ranks, rank = memoryview(bytearray(SLOT_BYTES + MAX_ANSWER_BYTES)), 1, 0
        else:
            memory = memoryview(map_file(address))
            num_ranks = len(memory) // (SLOT_BYTES + MAX_ANSWER_BYTES)
        self._numbers = memory[rank * SLOT_BYTES : (rank + 1) * SLOT_BYTES].cast("Q")
        self._answer_buffer = answer_buffer(memory, num_ranks, rank)
        self._numbers[PID] = os.getpid()

    def write(self, doing: int, step: int | None = None) -> None:
        """Record a heartbeat."""
        if step is not None:
            self._numbers[STEP] = step
        self._numbers[ACTIVITY] = doing
        # The counter is written last, after the activity and the step that belong to it.
        self._numbers[COUNT] += 1

    @property
    def doing(self) -> int:
        """Activity in the latest heartbeat: index into `ACTIVITIES`."""
        return self._numbers[ACTIVITY]

    def note_gpu(self) -> None:
        """Record that this rank drives a GPU."""
        self._numbers[ON_GPU] = 1

    @property
    def has_request(self) -> bool:
        """True if the supervisor waits for an answer."""
        return self._numbers[REQUESTED] != self._numbers[ANSWERED]

    def answer(self, reply: bytes) -> None:
        """Answer the supervisor's latest request. An answer that exceeds the buffer is sent empty."""
        request_number = self._numbers[REQUESTED]
        reply = reply if len(reply) <= MAX_ANSWER_BYTES else b""
        self._answer_buffer[: len(reply)] = reply
        self._numbers[ANSWER_SIZE] = len(reply)
        # The request number is last: it marks the answer above as complete.
        self._numbers[ANSWERED] = request_number


def answer_buffer(memory: memoryview, num_ranks: int, rank: int) -> memoryview:
    """Return a rank's buffer for answers."""
    start = num_ranks * SLOT_BYTES + rank * MAX_ANSWER_BYTES
    return memory[start : start + MAX_ANSWER_BYTES]


STACKS_SIGNAL = signal.SIGUSR2
_PR_SET_PTRACER = 0x59616D61
_slot = HeartbeatSlot(None, 0)


def begin_heartbeats(rank: int | None = None) -> HeartbeatSlot:
    """Send heartbeats to the supervisor, if there is one, and allow it to read this rank's stacks. Returns
    the rank's slot: calling its `write` saves one call compared with `write_heartbeat`.

    Args:
        rank: this process's rank; None: the one that torchrun gave it.
    """
    global _slot
    address = os.environ.get(ADDRESS)
    _slot = HeartbeatSlot(address, int(os.environ["RANK"]) if rank is None else rank)
    write_heartbeat(STARTING)
    # This signal writes the stacks of all threads to the rank's log, even from inside compiled code.
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr.fileno(), all_threads=True)
    # Under Yama's ptrace restriction only ancestors may read a process, but py-spy is a sibling: another
    # child of the supervisor. This call also permits the supervisor's descendants.
    if address is not None and (supervisor_pid := facilities.owner_of_path(address)) is not None:
        facilities.prctl(_PR_SET_PTRACER, supervisor_pid)
    return _slot


def write_heartbeat(doing: int, step: int | None = None) -> None:
    """Record a heartbeat: the current activity, and the last completed step."""
    _slot.write(doing, step)


def describe_activity() -> str:
    """Return this rank's activity, as worded in `ACTIVITIES`."""
    return ACTIVITIES[_slot.doing]


def note_gpu() -> None:
    """Record that this rank drives a GPU: waiting for a GPU uses CPU time, like work."""
    _slot.note_gpu()


def answer_request(make_answer: Callable[[], bytes]) -> None:
    """Answer the supervisor's request, if any, with this rank's collectives. Callable from any thread."""
    if _slot.has_request:
        _slot.answer(make_answer())


# Collectives whose tensors have the same size on all ranks.
_SAME_SIZE = ("all-reduce", "broadcast")


@dataclass(frozen=True, kw_only=True)
class PendingCollective:
    """One collective: its sequence number in its process group, and its tensor."""

    number: int
    name: str
    dtype: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        details = f" ({self.dtype}, {_size_text(self.num_bytes)})" if self.dtype else ""
        return f"{self.name} {self.number}{details}"

    def fits(self, expected: PendingCollective) -> bool:
        """True if both ranks are in the same collective: same operation and, where required, same size."""
        is_same_size = self.name not in _SAME_SIZE or self.num_bytes == expected.num_bytes
        return self.name == expected.name and is_same_size


@dataclass(frozen=True, kw_only=True)
class Group:
    """One rank's view of a process group.

    Attributes:
        ranks: Global ranks of its members.
        newest: The last collective that this rank has entered.
        unfinished: The first collective that it has entered and not left.
    """

    name: str
    ranks: tuple[int, ...]
    newest: PendingCollective | None = None
    unfinished: PendingCollective | None = None


@dataclass(frozen=True, kw_only=True)
class RankAnswer:
    """A rank's answer to a request of the supervisor.

    Attributes:
        groups: Its process groups; empty if torch cannot list them.
        gradients_done: Number of backward passes whose gradients its GPU has computed; None if unknown.
    """

    groups: tuple[Group, ...] = ()
    gradients_done: int | None = None


def to_bytes(answer: RankAnswer) -> bytes:
    """Serialize an answer."""
    return json.dumps(asdict(answer)).encode()


def from_bytes(reply: bytes) -> RankAnswer | None:
    """Parse an answer; None if it is empty or invalid."""
    try:
        return typed.read(RankAnswer, parse_json(reply))
    except ValueError:
        return None


def _size_text(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f} MB"


# A rank that computes or reads may be silent for this multiple of `hang_limit_s`.
BUSY_FACTOR = 30
UNWATCHED_PATIENCE = timedelta(seconds=60)
# With `compile`, one rank may load from a cache what another compiles, for example for an uneven last batch.
COMPILERS_PATIENCE = timedelta(minutes=10)
FOR_EVER = timedelta(days=30)


def silence_limit(config: Config) -> timedelta:
    """Return how long a rank waits in a collective before it aborts.

    Under a supervisor the limit is long: the supervisor detects and diagnoses a hang sooner, and can tell a
    long step from a hang.
    """
    if ADDRESS not in os.environ:
        return COMPILERS_PATIENCE if config.compile else UNWATCHED_PATIENCE
    if config.on_hang == "wait":
        return FOR_EVER
    return timedelta(seconds=BUSY_FACTOR * config.hang_limit_s) + UNWATCHED_PATIENCE
