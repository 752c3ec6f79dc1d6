"""Which collectives the ranks are in, and who is missing: what their flight recorders say, laid side by side.

In a process group every rank enters the same collectives in the same order, and each has a number. A
collective that some have entered and not left, and another one has never entered, waits for that one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainers.files.json_files import parse_json

# These take tensors of one size on all ranks.
_SAME_SIZE = ("all-reduce", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective: its number in its process group, and what it is given."""

    number: int
    name: str
    dtype: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        about = f" ({self.dtype}, {_size(self.num_bytes)})" if self.dtype else ""
        return f"{self.name} {self.number}{about}"

    def fits(self, other: Collective) -> bool:
        """Tell whether both ranks mean the same."""
        is_same_size = self.name not in _SAME_SIZE or self.num_bytes == other.num_bytes
        return self.name == other.name and is_same_size


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group as one of its ranks knows it.

    Attributes:
        ranks: of the whole job; they belong to it.
        newest: the last collective that this rank has entered.
        unfinished: the first one that it has entered and not left.
    """

    name: str
    ranks: tuple[int, ...]
    newest: Collective | None = None
    unfinished: Collective | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a rank says when it is asked.

    Attributes:
        groups: its process groups; none where torch cannot say.
        gradients_done: of how many backward passes its GPU has the gradients; None where that is not known.
    """

    groups: tuple[Group, ...] = ()
    gradients_done: int | None = None


# What each rank says that has answered.
Views = Mapping[int, Sequence[Group]]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A collective that cannot end: who waits in what, and who never came."""

    waiting: Mapping[int, Collective]
    missing: tuple[int, ...]

    @property
    def is_mismatch(self) -> bool:
        """Tell whether those who came mean different things."""
        first, *others = self.waiting.values()
        return not all(first.fits(other) for other in others)

    def __str__(self) -> str:
        if self.is_mismatch:
            return "; ".join(f"rank {rank} is in {what}" for rank, what in sorted(self.waiting.items()))
        what = next(iter(self.waiting.values()))
        wait = "waits" if len(self.waiting) == 1 else "wait"
        return f"{_ranks(self.missing)} never entered {what}, in which {_ranks(self.waiting)} {wait}"


def to_bytes(answer: Answer) -> bytes:
    """Return what a rank says."""
    return json.dumps(asdict(answer)).encode()


def from_bytes(said: bytes) -> Answer | None:
    """Return what a rank has said; None where it could not, or it makes no sense."""
    try:
        raw = parse_json(said)
        done = raw["gradients_done"]
        return Answer(
            groups=tuple(_group(group) for group in raw["groups"]),
            gradients_done=None if done is None else int(done),
        )
    except (ValueError, LookupError, TypeError):
        return None


def behind_on_gpu(answers: Mapping[int, Answer]) -> tuple[int, ...]:
    """Return the ranks whose GPUs have not computed gradients that other GPUs have."""
    known = {
        rank: answer.gradients_done for rank, answer in answers.items() if answer.gradients_done is not None
    }
    return tuple(sorted(rank for rank, done in known.items() if done < max(known.values())))


def gaps(views: Views) -> tuple[Gap, ...]:
    """Return the collectives that cannot end as things stand; a rank that says nothing is not missing."""
    found = []
    for name, ranks in sorted({(group.name, group.ranks) for said in views.values() for group in said}):
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
            missing=tuple(rank for rank, group in inside.items() if _newest_number(group) < number),
        )
        if gap.missing or gap.is_mismatch:
            found.append(gap)
    return tuple(found)


def is_in_one(rank: int, views: Views) -> bool:
    """Tell whether a rank has entered a collective and not left it."""
    return any(group.unfinished is not None for group in views.get(rank, ()))


def blamed(found: Sequence[Gap]) -> tuple[int, ...]:
    """Return the few ranks that the many wait for; none where it is not the many."""
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


def _newest_number(group: Group | None) -> int:
    return -1 if group is None or group.newest is None else group.newest.number


def _group(raw: Mapping[str, Any]) -> Group:
    return Group(
        name=str(raw["name"]),
        ranks=tuple(int(rank) for rank in raw["ranks"]),
        newest=None if raw["newest"] is None else Collective(**raw["newest"]),
        unfinished=None if raw["unfinished"] is None else Collective(**raw["unfinished"]),
    )


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _size(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f} MB"
