"""The recorded actions of the ranks of a lesson's script (`trainers.watch.details`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.watch import spool

# Maximum size of the notes: a lesson's script with more trains far too long.
MAX_NOTES_BYTES = 32 * 2**20
_NUMBER = r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?"
# Matches the path of a script in its run's folder, to shorten messages.
_FOLDER = re.compile(r"[^\s,\"']*/code/(?=[\w./-]+\.py)")
_COLLECTIVES_DIFFER = re.compile(r"preamble|Connection (closed|reset) by peer|broken pipe", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an optimizer.

    Attributes:
        before, after: hashes of the weights.
        used, local: a linear function of the applied gradient, and of the sum of the gradients that this
            rank's backward passes computed.
        gradient_bytes: size of the gradient.
        reduced_bytes: the sizes of the all-reduces since the step's first backward pass began.
        losses: the loss of each backward pass.
        criteria: the values of the loss function, before any division.
    """

    lr: float
    before: int
    after: int
    used: float
    local: float
    gradient_bytes: int
    reduced_bytes: tuple[int, ...]
    losses: tuple[float, ...]
    criteria: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A line that a rank printed, and the number of losses that it had computed by then."""

    line: str
    num_losses: int
    num_criteria: int

    def numbers(self, label: str) -> list[str]:
        """Return the decimal numbers after a word, or all numbers of the line if the word is missing."""
        # Splitting unseparated words would have too many possibilities.
        matches = re.findall(
            rf"{label}\w*\W{{0,6}}(?:\w+\W{{1,3}}){{0,4}}?({_NUMBER})", self.line, re.IGNORECASE
        )
        return matches or re.findall(_NUMBER, self.line)

    def has(self, label: str) -> bool:
        """True if a word of the line contains the label."""
        return re.search(label, self.line, re.IGNORECASE) is not None


@dataclass
class RankFacts:
    """The recorded actions of one rank, in order.

    Attributes:
        world_size: size of its process group; None without a group.
        trained: hashes of the samples that it trained on.
        evaluations: hashes of the samples of each evaluation, which covers all samples between two steps.
        evaluated_at: number of steps before the latest evaluation.
        sizes: length of the data set of the latest evaluation's loader, and of the data sets of which it is a
            subset.
        saved, loaded: path, and number of collectives that this rank had begun by then.
        written: paths of the files that it opened for writing.
    """

    world_size: int | None = None
    steps: list[Step] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    evaluations: list[list[int]] = field(default_factory=list)
    evaluated_at: int = -1
    sizes: list[int] = field(default_factory=list)
    loader: Mapping[str, Any] = field(default_factory=dict)
    trained_whole: int = 0
    printed: list[Printed] = field(default_factory=list)
    saved: list[tuple[str, int]] = field(default_factory=list)
    loaded: list[tuple[str, int]] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    @property
    def losses(self) -> list[float]:
        """The loss of each backward pass."""
        return [loss for step in self.steps for loss in step.losses]

    @property
    def criteria(self) -> list[float]:
        """Each value of the loss function."""
        return [value for step in self.steps for value in step.criteria]

    def epochs(self, number: int) -> list[list[int]]:
        """Return the samples that it trained on, in equal parts."""
        size = len(self.trained) / number
        edges = [round(size * index) for index in range(number + 1)]
        return [self.trained[begin:end] for begin, end in itertools.pairwise(edges)]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The recorded actions of a script.

    Attributes:
        error: message of a failed run, and its code, such as `hang`.
    """

    ranks: tuple[RankFacts, ...]
    state: str = "finished"
    code: str = ""
    error: str = ""

    @property
    def ranks_disagree(self) -> bool:
        """True if the error shows that ranks called different collectives."""
        return _COLLECTIVES_DIFFER.search(self.error) is not None


def read(run: RunDirectory) -> RunFacts:
    """Read the facts of a run that has ended.

    Raises:
        ValueError: if it cannot be read, or its script has recorded too many facts.
        OSError: if a file cannot be read.
    """
    status = liveness.read_status(run)
    config = run.read_config()
    errors, _ = events.read(run.events, kinds=("error",)) if run.events.exists() else ([], 0)
    error: Mapping[str, Any] = errors[0] if errors else {}
    return RunFacts(
        ranks=read_ranks(run, config.nproc_per_node),
        state=status.state,
        code=str(error.get("code", "")),
        error=_FOLDER.sub("", str(error.get("message") or status.error or "")),
    )


def read_ranks(run: RunDirectory, number: int) -> tuple[RankFacts, ...]:
    """Return the recorded actions of each rank.

    Raises:
        ValueError: if it cannot be read, or the script has recorded too many facts.
    """
    return tuple(_read_rank(run, rank) for rank in range(number))


def _read_rank(run: RunDirectory, rank: int) -> RankFacts:
    facts = RankFacts()
    path = run.path / spool.FOLDER / spool.notes_name(rank)
    if path.is_symlink() or (path.exists() and path.stat().st_size > MAX_NOTES_BYTES):
        raise ValueError("the script trained too long to be checked: train for fewer steps")
    try:
        for note in spool.SpoolReader(run.path, rank).notes():
            _record_note(facts, note)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"the notes of rank {rank} cannot be read: {error!r}") from error
    return facts


def _record_note(facts: RankFacts, note: Mapping[str, Any]) -> None:
    kind = note["kind"]
    if kind == "group":
        facts.world_size = facts.world_size or int(note["world_size"])
    elif kind == "stepped":
        facts.steps.append(_step(note))
    elif kind == "loader":
        facts.loader = note
    elif kind == "seen" and note["is_training"]:
        facts.trained += note["hashes"]
        facts.trained_whole = int(facts.loader.get("whole", 0))
    elif kind == "seen":
        if facts.evaluated_at != len(facts.steps):
            facts.evaluated_at = len(facts.steps)
            facts.evaluations.append([])
        facts.evaluations[-1] += note["hashes"]
        # the data set was split into training and validation parts
        is_remainder = facts.loader.get("whole") == facts.trained_whole
        facts.sizes = [] if is_remainder else [int(size) for size in facts.loader.get("sizes", ())]
    elif kind == "printed":
        counts = {name: int(note[name]) for name in ("num_losses", "num_criteria")}
        facts.printed.append(Printed(line=str(note["line"]), **counts))
    elif kind in ("saved", "loaded"):
        files = facts.saved if kind == "saved" else facts.loaded
        files.append((str(note["path"]), int(note["num_collectives"])))
    elif kind == "file":
        facts.written.add(str(note["path"]))


def _step(note: Mapping[str, Any]) -> Step:
    return Step(
        lr=float(note["lr"]),
        before=int(note["before"]),
        after=int(note["after"]),
        used=float(note["used"]),
        local=float(note["local"]),
        gradient_bytes=int(note["gradient_bytes"]),
        reduced_bytes=tuple(map(int, note["reduced"])),
        losses=tuple(map(float, note["losses"])),
        criteria=tuple(map(float, note["criteria"])),
    )


def means(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the means over the ranks, number by number, up to the shortest rank."""
    return [math.fsum(values) / len(values) for values in zip(*ranks, strict=False)]
