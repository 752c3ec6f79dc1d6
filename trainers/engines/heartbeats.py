"""Heartbeats of ranks in shared memory.

The supervisor creates one memory file. Ranks find it through the environment variable named `ADDRESS` and map
it. Layout, for N ranks: N places of `_NUMBERS` 64-bit integers, then N buffers of `MAX_ANSWER_BYTES`.
No locks are needed, because each number has one writer: the supervisor writes `_ASKED`, the rank writes the
rest. A heartbeat is three stores into mapped memory: cheap enough for several per step.

The second half of the file compares the ranks' answers, to find the rank that blocks a collective.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from trainers.contract.config import Config
from trainers.files.json_files import parse_json
from trainers.machine import host
from trainers.machine.host import MemoryFile

ADDRESS = "TRAINERS_HEARTBEATS"

# Activities of a rank, worded to follow "at step 7, …".
DOING = (
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
    "waiting in the warm pool",
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
    STANDING_BY,
) = range(len(DOING))

# A busy rank (computing or reading) may be silent for this multiple of `hang_limit_s`.
BUSY_FACTOR = 30

_COUNT, _PID, _STEP, _DOING, _ON_GPU, _ASKED, _ANSWERED, _ANSWER_BYTES = range(8)
_NUMBERS = 8
_PLACE_BYTES = _NUMBERS * 8
# The maximum size of an answer. Each process group takes a few hundred bytes.
MAX_ANSWER_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The latest heartbeat of a rank.

    Attributes:
        step: The last completed step.
        doing: Index into `DOING`.
        is_on_gpu: True if the rank drives a GPU. Waiting for a GPU is busy waiting: it uses a core
            completely, so CPU time proves no progress.
    """

    count: int
    pid: int
    step: int
    doing: int
    is_on_gpu: bool = False

    @property
    def words(self) -> str:
        """Activity of the rank, as text."""
        return DOING[self.doing] if self.doing < len(DOING) else DOING[STARTING]


class Board:
    """The supervisor's side: reads the place of every rank."""

    def __init__(self, num_ranks: int) -> None:
        self._file = MemoryFile("heartbeats", num_ranks * (_PLACE_BYTES + MAX_ANSWER_BYTES))
        self._bytes = memoryview(self._file.map())
        self._numbers = self._bytes[: num_ranks * _PLACE_BYTES].cast("Q")
        self._num_asked = 0
        self.num_ranks = num_ranks

    @property
    def address(self) -> str:
        """Path under which ranks open the memory file. It is valid while this process lives."""
        return self._file.address

    def read(self, rank: int) -> Beat | None:
        """Return a rank's latest heartbeat; None before its first."""
        start = rank * _NUMBERS
        numbers = self._numbers[start : start + _NUMBERS]
        if numbers[_COUNT] == 0:
            return None
        return Beat(
            count=numbers[_COUNT],
            pid=numbers[_PID],
            step=numbers[_STEP],
            doing=numbers[_DOING],
            is_on_gpu=bool(numbers[_ON_GPU]),
        )

    def ask(self) -> None:
        """Ask every rank for the collectives it is in. Ranks poll the request number."""
        self._num_asked += 1
        for rank in range(self.num_ranks):
            self._numbers[rank * _NUMBERS + _ASKED] = self._num_asked

    def answer(self, rank: int) -> bytes | None:
        """Return a rank's answer to the latest request, or None. A stuck rank never answers."""
        numbers = self._numbers[rank * _NUMBERS : (rank + 1) * _NUMBERS]
        if self._num_asked == 0 or numbers[_ANSWERED] != self._num_asked:
            return None
        room = _buffer_of_answer(self._bytes, self.num_ranks, rank)
        return bytes(room[: numbers[_ANSWER_BYTES]])


class Place:
    """A rank's side: writes its own place."""

    def __init__(self, address: str | None, rank: int) -> None:
        """Map this rank's place. Without an address, heartbeats are discarded.

        Raises:
            OSError: If the memory file does not exist.
        """
        if address is None:
            board, num_ranks, rank = memoryview(bytearray(_PLACE_BYTES + MAX_ANSWER_BYTES)), 1, 0
        else:
            board = memoryview(host.map_file(address))
            num_ranks = len(board) // (_PLACE_BYTES + MAX_ANSWER_BYTES)
        self._numbers = board[rank * _PLACE_BYTES : (rank + 1) * _PLACE_BYTES].cast("Q")
        self._answer_buffer = _buffer_of_answer(board, num_ranks, rank)
        self._numbers[_PID] = os.getpid()

    def beat(self, doing: int, step: int | None = None) -> None:
        """Record a heartbeat."""
        if step is not None:
            self._numbers[_STEP] = step
        self._numbers[_DOING] = doing
        # The counter is written last, after the activity and the step that belong to it.
        self._numbers[_COUNT] += 1

    @property
    def doing(self) -> int:
        """Activity in the latest heartbeat: index into `DOING`."""
        return self._numbers[_DOING]

    def note_gpu(self) -> None:
        """Record that this rank drives a GPU."""
        self._numbers[_ON_GPU] = 1

    @property
    def is_asked(self) -> bool:
        """True if the supervisor waits for an answer."""
        return self._numbers[_ASKED] != self._numbers[_ANSWERED]

    def answer(self, reply: bytes) -> None:
        """Answer the supervisor's latest request. An answer that exceeds the buffer is sent empty."""
        asked = self._numbers[_ASKED]
        reply = reply if len(reply) <= MAX_ANSWER_BYTES else b""
        self._answer_buffer[: len(reply)] = reply
        self._numbers[_ANSWER_BYTES] = len(reply)
        # The request number is last: it marks the answer above as complete.
        self._numbers[_ANSWERED] = asked


def _buffer_of_answer(board: memoryview, num_ranks: int, rank: int) -> memoryview:
    start = num_ranks * _PLACE_BYTES + rank * MAX_ANSWER_BYTES
    return board[start : start + MAX_ANSWER_BYTES]


def can_be_watched() -> bool:
    """True if this system has memory files, as Linux does."""
    return host.is_in_memory()


STACKS_SIGNAL = signal.SIGUSR2
UNWATCHED_PATIENCE = timedelta(seconds=60)
# With `compile`, one rank may load from a cache what another compiles, for example for an uneven last batch.
COMPILERS_PATIENCE = timedelta(minutes=10)
FOR_EVER = timedelta(days=30)

_PR_SET_PTRACER = 0x59616D61
_place = Place(None, 0)


def begin_heartbeats() -> None:
    """Send heartbeats to the supervisor, if there is one, and let it read this rank's stacks."""
    global _place
    address = os.environ.get(ADDRESS)
    _place = Place(address, int(os.environ["RANK"]))
    write_heartbeat(STARTING)
    # This signal writes the stacks of all threads to the rank's log, even from inside compiled code.
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr.fileno(), all_threads=True)
    if address is not None and sys.platform.startswith("linux"):
        # Under Yama's ptrace restriction only ancestors may read a process, but py-spy is another child of
        # the supervisor. This allows the supervisor and its descendants. Its pid is in the address,
        # /proc/PID/fd/N.
        supervisor_pid = int(address.split("/")[2])
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, supervisor_pid, 0, 0, 0)


def silence_limit(config: Config) -> timedelta:
    """Return how long a rank waits in a collective before it aborts.

    Under a supervisor the limit is long: the supervisor finds a hang sooner, diagnoses it, and does not
    mistake a long step for a hang.
    """
    if ADDRESS not in os.environ:
        return COMPILERS_PATIENCE if config.compile else UNWATCHED_PATIENCE
    if config.on_hang == "wait":
        return FOR_EVER
    return timedelta(seconds=BUSY_FACTOR * config.hang_limit_s) + UNWATCHED_PATIENCE


def write_heartbeat(doing: int, step: int | None = None) -> None:
    """Record a heartbeat: the current activity, and the last completed step."""
    _place.beat(doing, step)


def describe_activity() -> str:
    """Return this rank's activity, as worded in `DOING`."""
    return DOING[_place.doing]


def note_gpu() -> None:
    """Record that this rank drives a GPU, where waiting takes CPU time as if it were work."""
    _place.note_gpu()


def answer_when_asked(say: Callable[[], bytes]) -> None:
    """Answer the supervisor's request, if any, with this rank's collectives. Callable from any thread."""
    if _place.is_asked:
        _place.answer(say())


# Collectives whose tensors have the same size on all ranks.
_SAME_SIZE = ("all-reduce", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective: its sequence number in its process group, and its tensor."""

    number: int
    name: str
    dtype: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        about = f" ({self.dtype}, {_size_text(self.num_bytes)})" if self.dtype else ""
        return f"{self.name} {self.number}{about}"

    def fits(self, other: Collective) -> bool:
        """True if both ranks are in the same collective: same operation and, where required, same size."""
        is_same_size = self.name not in _SAME_SIZE or self.num_bytes == other.num_bytes
        return self.name == other.name and is_same_size


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
    newest: Collective | None = None
    unfinished: Collective | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A rank's answer to a request of the supervisor.

    Attributes:
        groups: Its process groups; empty if torch cannot list them.
        gradients_done: Number of backward passes whose gradients its GPU has computed; None if unknown.
    """

    groups: tuple[Group, ...] = ()
    gradients_done: int | None = None


# The views of the ranks that have answered.
Views = Mapping[int, Sequence[Group]]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A collective that cannot finish: the ranks inside it, and the ranks that never entered it."""

    waiting: Mapping[int, Collective]
    missing: tuple[int, ...]

    @property
    def is_mismatch(self) -> bool:
        """True if the ranks inside are in different collectives."""
        first, *others = self.waiting.values()
        return not all(first.fits(other) for other in others)

    def __str__(self) -> str:
        if self.is_mismatch:
            return "; ".join(f"rank {rank} is in {what}" for rank, what in sorted(self.waiting.items()))
        what = next(iter(self.waiting.values()))
        wait = "waits" if len(self.waiting) == 1 else "wait"
        return (
            f"{_ranks_text(self.missing)} never entered {what}, in which {_ranks_text(self.waiting)} {wait}"
        )


def to_bytes(answer: Answer) -> bytes:
    """Serialize an answer."""
    return json.dumps(asdict(answer)).encode()


def from_bytes(reply: bytes) -> Answer | None:
    """Parse an answer; None if it is empty or invalid."""
    try:
        raw = parse_json(reply)
        done = raw["gradients_done"]
        return Answer(
            groups=tuple(_parse_group(group) for group in raw["groups"]),
            gradients_done=None if done is None else int(done),
        )
    except (ValueError, LookupError, TypeError):
        return None


def behind_on_gpu(answers: Mapping[int, Answer]) -> tuple[int, ...]:
    """Return the ranks whose GPUs have computed fewer gradients than other GPUs."""
    known = {
        rank: answer.gradients_done for rank, answer in answers.items() if answer.gradients_done is not None
    }
    return tuple(sorted(rank for rank, done in known.items() if done < max(known.values())))


def gaps(views: Views) -> tuple[Gap, ...]:
    """Return the collectives that cannot finish in the current state.

    Ranks are compared by the sequence number that torch gives each collective of a process group: the lowest
    unfinished number blocks the group, and a rank whose latest number is lower has not entered it. A rank
    that did not answer is not reported as missing.
    """
    found = []
    for name, ranks in sorted({(group.name, group.ranks) for groups in views.values() for group in groups}):
        inside = {
            rank: next((group for group in views[rank] if (group.name, group.ranks) == (name, ranks)), None)
            for rank in ranks
            if rank in views
        }
        unfinished = {rank: group.unfinished for rank, group in inside.items() if group and group.unfinished}
        if not unfinished:
            continue
        number = min(what.number for what in unfinished.values())
        gap = Gap(
            waiting={rank: what for rank, what in unfinished.items() if what.number == number},
            missing=tuple(rank for rank, group in inside.items() if _latest_number(group) < number),
        )
        if gap.missing or gap.is_mismatch:
            found.append(gap)
    return tuple(found)


def is_in_one(rank: int, views: Views) -> bool:
    """True if the rank has entered a collective and not left it."""
    return any(group.unfinished is not None for group in views.get(rank, ()))


def blamed_ranks(found: Sequence[Gap]) -> tuple[int, ...]:
    """Return the minority of ranks that block the majority; empty without a majority."""
    guilty: set[int] = set()
    for gap in found:
        if not gap.is_mismatch:
            guilty.update(gap.missing if len(gap.missing) < len(gap.waiting) else ())
            continue
        many = max(gap.waiting.values(), key=lambda what: _num_fitting(what, gap))
        if 2 * _num_fitting(many, gap) > len(gap.waiting):
            guilty.update(rank for rank, what in gap.waiting.items() if not what.fits(many))
    return tuple(sorted(guilty))


def _num_fitting(what: Collective, gap: Gap) -> int:
    return sum(what.fits(other) for other in gap.waiting.values())


def _latest_number(group: Group | None) -> int:
    return -1 if group is None or group.newest is None else group.newest.number


def _parse_group(raw: Mapping[str, Any]) -> Group:
    return Group(
        name=str(raw["name"]),
        ranks=tuple(int(rank) for rank in raw["ranks"]),
        newest=None if raw["newest"] is None else Collective(**raw["newest"]),
        unfinished=None if raw["unfinished"] is None else Collective(**raw["unfinished"]),
    )


def _ranks_text(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _size_text(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f} MB"
