"""Samples × steps × ranks as counts: the picture of who saw what, coarse enough to be sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ddp_gui.run import sample_order
from ddp_gui.run.sample_order import Order
from ddp_gui.run.who_saw_what import Sampling

By = Literal["sample", "place"]
Whole = npt.NDArray[np.int64]

MOST_COLUMNS, MOST_ROWS, MOST_RANK_GROUPS = 240, 48, 8
# Of more samples only the places of the order are shown: a shuffled order of all takes too much memory.
MOST_SHUFFLED = 2_000_000
MOST_PLACES = 20_000_000
# Where one sample was seen: in so many epochs, and shuffling no more than this in all.
MOST_EPOCHS = 50
MOST_SHUFFLED_FOR_ONE = 4_000_000
_CHUNK = 1 << 20


class Bins(NamedTuple):
    """Whole numbers from `first` on in ranges of `size`, the last one perhaps shorter."""

    first: int
    end: int
    size: int

    @classmethod
    def of(cls, first: int, end: int, most: int) -> Bins:
        """Return at most so many ranges."""
        return cls(first, end, max(1, -(-(end - first) // most)))

    @property
    def number(self) -> int:
        return -(-(self.end - self.first) // self.size)

    def sizes(self) -> list[int]:
        """Return how many numbers each range has."""
        return [min(self.size, self.end - first) for first in range(self.first, self.end, self.size)]

    def said(self) -> dict[str, int]:
        """Return them as the page reads them."""
        return {"first": self.first, "last": self.end - 1, "size": self.size, "number": self.number}


@dataclass(frozen=True, kw_only=True)
class Looks:
    """Some looks at samples, as parallel arrays; without a replica each look is that of all of them."""

    column: Whole
    step: Whole
    replica: Whole | None


def ways(sampling: Sampling) -> list[By]:
    """Return by what the columns of the picture can be: each sample, or each place of the order."""
    if sampling.num_samples > MOST_PLACES:
        return []
    return ["sample", "place"] if sampling.num_samples <= MOST_SHUFFLED else ["place"]


def picture(sampling: Sampling, epoch: int, by: By, first: int, end: int) -> dict[str, Any]:
    """Return how often each range of ranks saw each range of samples in each range of steps of an epoch.

    Args:
        by: columns are samples, or places of the epoch's order.
        first, end: the columns.
    """
    columns = Bins.of(first, end, MOST_COLUMNS)
    order = sample_order.shuffled(sampling.num_samples, sampling.seed_of(epoch)) if by == "sample" else None
    pieces = sampling.pieces(epoch)
    num_replicas = max((piece.num_replicas for piece in pieces), default=1)
    groups = Bins.of(0, num_replicas, MOST_RANK_GROUPS)
    steps = _steps_of(sampling, epoch, order, columns)
    rows = Bins.of(*steps, MOST_ROWS)
    counts = np.zeros((rows.number * columns.number, groups.number), np.int64)
    for looks in _looks(sampling, epoch, order, columns):
        cells = (looks.step - rows.first) // rows.size * columns.number + looks.column // columns.size
        if looks.replica is None:
            counts += np.bincount(cells, minlength=len(counts))[:, np.newaxis] * groups.sizes()
        else:
            cells = cells * groups.number + looks.replica // groups.size
            counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
    return {
        "columns": columns.said(),
        "rows": rows.said(),
        "ranks": groups.said(),
        "counts": counts.reshape(rows.number, -1).tolist(),
    }


def times_seen(sampling: Sampling, epoch: int) -> dict[str, int]:
    """Return how often a sample is seen in a whole epoch: the fewest times and the most, over all samples."""
    pieces = sampling.pieces(epoch)
    borders = sorted({0, *(piece.first_place for piece in pieces), *(piece.end_place for piece in pieces)})
    times = [
        sum(
            1 if piece.is_shared else piece.num_replicas
            for piece in pieces
            if piece.first_place <= place < piece.end_place
        )
        for place in borders
        if place < sampling.num_samples
    ]
    return {"fewest": min(times), "most": max(times)}


def where_seen(sampling: Sampling, sample: int, num_epochs: int) -> tuple[list[dict[str, Any]], bool]:
    """Return who saw one sample when, epoch by epoch, and whether these are all the epochs."""
    most = max(1, min(MOST_EPOCHS, MOST_SHUFFLED_FOR_ONE // sampling.num_samples))
    found = []
    for epoch in range(min(num_epochs, most)):
        order = sample_order.shuffled(sampling.num_samples, sampling.seed_of(epoch))
        place = int(np.flatnonzero(order == sample)[0])
        seen = [look._asdict() for look in sampling.seen(epoch, place)]
        found.append({"epoch": epoch, "place": place, "seen": seen})
    return found, num_epochs <= most


def _steps_of(sampling: Sampling, epoch: int, order: Order | None, columns: Bins) -> tuple[int, int]:
    """Return the first step that looks at one of these columns, and the one after the last."""
    pieces = sampling.pieces(epoch)
    if order is not None and (columns.first, columns.end) == (0, sampling.num_samples) and pieces:
        return pieces[0].first_step, pieces[-1].first_step + pieces[-1].num_steps
    spans = [
        (int(looks.step.min()), int(looks.step.max()) + 1)
        for looks in _looks(sampling, epoch, order, columns)
    ]
    return min((low for low, _ in spans), default=1), max((high for _, high in spans), default=1)


def _looks(sampling: Sampling, epoch: int, order: Order | None, columns: Bins) -> Iterator[Looks]:
    """Yield all looks at the columns, some at a time; a column counts from the first."""
    for piece in sampling.pieces(epoch):
        first, end = piece.first_place, piece.end_place
        if order is None:
            first, end = max(first, columns.first), min(end, columns.end)
        for begin in range(first, end, _CHUNK):
            places = np.arange(begin, min(end, begin + _CHUNK))
            column = places if order is None else order[places].astype(np.int64)
            if order is not None:
                is_shown = (column >= columns.first) & (column < columns.end)
                places, column = places[is_shown], column[is_shown]
            if not len(places):
                continue
            number, within = np.divmod(places - piece.first_place, piece.global_batch)
            step, column = piece.first_step + number, column - columns.first
            replica = within % piece.num_dealt if piece.is_shared else None
            yield Looks(column=column, step=step, replica=replica)
