"""The groups in which gradients are averaged, and when each of them was: what a recording of a step reads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are averaged together, in the order in which they lie in the bucket.

    Attributes:
        parameters: the name of each parameter, and the bytes of its gradient.
    """

    parameters: tuple[tuple[str, int], ...]

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.parameters)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One piece of a bucket on its way through shared memory, in moments of `time.monotonic_ns`.

    Attributes:
        written_ns: this rank's part lies in the memory.
        met_ns: those of all ranks do.
    """

    num_bytes: int
    began_ns: int
    written_ns: int
    met_ns: int
    ended_ns: int


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """One all-reduce of a bucket on this rank, in moments of `time.monotonic_ns`."""

    began_ns: int
    ended_ns: int
    bucket: Bucket
    rounds: tuple[Round, ...]


@dataclass(kw_only=True)
class BucketNotes:
    """Where a strategy notes its all-reduces while a recording is under way."""

    averaged: list[Averaged] = field(default_factory=list)
