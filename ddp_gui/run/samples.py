"""Computes which rank trained on which sample, as a picture and by sample, and serves the routes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from fastapi import HTTPException, Query

from ddp_gui.background.workers import SLOW, Router
from ddp_gui.events.run_view import RunView
from ddp_gui.runs.runs import RunStore
from trainers.contract.config import Config
from trainers.contract.events import Event

Order = npt.NDArray[np.int32]

# From this size on, torch.randperm uses 64-bit random numbers; larger data sets are not displayed.
MAX_SAMPLES = (2**32 - 1) // 20
# torch seeds its generator with the low 32 bits of the seed.
_SEED_BITS = 0xFFFF_FFFF


@functools.lru_cache(maxsize=4)
def shuffled_order(num_samples: int, seed: int) -> Order:
    """Return the shuffled order of sample indices, equal to `torch.randperm` on the CPU with this seed.

    Takes about 0.2 s for a million samples. The array is read-only because it is cached.
    """
    assert 0 <= num_samples < MAX_SAMPLES, "torch shuffles larger data sets differently"
    order = np.arange(num_samples, dtype=np.int32)
    if num_samples > 1:
        numbers = np.random.RandomState(seed & _SEED_BITS).randint(0, 2**32, num_samples - 1, np.uint32)
        partners = order.copy()
        partners[:-1] += (numbers % np.arange(num_samples, 1, -1, dtype=np.uint32)).astype(np.int32)
        order = _apply_swaps(partners)
    order.flags.writeable = False
    return order


def _apply_swaps(partners: Order) -> Order:
    """Return the order after each place in turn is swapped with its partner, which is at the same or a later
    place.

    Before its swap, place i contains the element that the last earlier place with partner i put there. That
    place may itself have received the element in the same way. Pointer doubling follows this chain to its
    start.
    """
    places = np.arange(len(partners), dtype=np.int32)
    source = places.copy()
    is_earlier = partners > places
    # of several places with the same partner, the last one wins
    source[partners[is_earlier]] = places[is_earlier]
    while not np.array_equal(earlier := source[source], source):
        source = earlier
    # Place i receives its partner's element, which an earlier swap may have put there.
    by_partner = np.argsort(partners, kind="stable").astype(np.int32)
    is_same = partners[by_partner[1:]] == partners[by_partner[:-1]]
    order = partners.copy()
    order[by_partner[1:][is_same]] = source[by_partner[:-1][is_same]]
    return order


By = Literal["sample", "place"]
Integers = npt.NDArray[np.int64]

MAX_COLUMNS, MAX_ROWS, MAX_RANK_GROUPS = 240, 48, 8
# Above this size only places of the order are shown: a shuffled order of all samples takes too much memory.
MAX_SHUFFLED = 2_000_000
MAX_PLACES = 20_000_000
# Limits for one sample's history: the number of epochs, and the total number of samples shuffled for it.
MAX_EPOCHS = 50
MAX_SHUFFLED_FOR_SAMPLE = 4_000_000
_CHUNK = 1 << 20


class Bins(NamedTuple):
    """Integers from `first` to `end` (exclusive) in ranges of `size`; the last range may be shorter."""

    first: int
    end: int
    size: int

    @classmethod
    def of(cls, first: int, end: int, max_bins: int) -> Bins:
        """Return at most `max_bins` ranges."""
        return cls(first, end, max(1, -(-(end - first) // max_bins)))

    @property
    def number(self) -> int:
        return -(-(self.end - self.first) // self.size)

    def sizes(self) -> list[int]:
        """Return the size of each range."""
        return [min(self.size, self.end - first) for first in range(self.first, self.end, self.size)]

    def to_json(self) -> dict[str, int]:
        """Return the ranges in the page's JSON format."""
        return {"first": self.first, "last": self.end - 1, "size": self.size, "number": self.number}


@dataclass(frozen=True, kw_only=True)
class SampleAccesses:
    """Accesses to samples, as parallel arrays. If `replica` is None, each access is by every replica."""

    column: Integers
    step: Integers
    replica: Integers | None


def picture_kinds(sampling: Sampling) -> list[By]:
    """Return the possible columns of the picture: samples, or places of the epoch's order."""
    if sampling.num_samples > MAX_PLACES:
        return []
    return ["sample", "place"] if sampling.num_samples <= MAX_SHUFFLED else ["place"]


def sample_picture(sampling: Sampling, epoch: int, by: By, first: int, end: int) -> dict[str, Any]:
    """Return how often each range of ranks used each range of samples in each range of steps of an epoch.

    Args:
        by: the kind of columns: samples, or places of the epoch's order.
        first, end: range of columns; `end` is exclusive.
    """
    columns = Bins.of(first, end, MAX_COLUMNS)
    order = shuffled_order(sampling.num_samples, sampling.seed_of(epoch)) if by == "sample" else None
    pieces = sampling.pieces(epoch)
    num_replicas = max((piece.num_replicas for piece in pieces), default=1)
    groups = Bins.of(0, num_replicas, MAX_RANK_GROUPS)
    steps = _steps_of(sampling, epoch, order, columns)
    rows = Bins.of(*steps, MAX_ROWS)
    counts = np.zeros((rows.number * columns.number, groups.number), np.int64)
    for accesses in _accesses(sampling, epoch, order, columns):
        cells = (accesses.step - rows.first) // rows.size * columns.number + accesses.column // columns.size
        if accesses.replica is None:
            counts += np.bincount(cells, minlength=len(counts))[:, np.newaxis] * groups.sizes()
        else:
            cells = cells * groups.number + accesses.replica // groups.size
            counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
    return {
        "columns": columns.to_json(),
        "rows": rows.to_json(),
        "ranks": groups.to_json(),
        "counts": counts.reshape(rows.number, -1).tolist(),
    }


def times_seen(sampling: Sampling, epoch: int) -> dict[str, int]:
    """Return how often a sample is used in one epoch: minimum and maximum over all samples."""
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


def list_accesses(sampling: Sampling, sample: int, num_epochs: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the ranks that used a sample in each epoch, and True if the list covers all epochs."""
    max_epochs = max(1, min(MAX_EPOCHS, MAX_SHUFFLED_FOR_SAMPLE // sampling.num_samples))
    epochs = []
    for epoch in range(min(num_epochs, max_epochs)):
        order = shuffled_order(sampling.num_samples, sampling.seed_of(epoch))
        place = int(np.flatnonzero(order == sample)[0])
        seen = [access._asdict() for access in sampling.seen(epoch, place)]
        epochs.append({"epoch": epoch, "place": place, "seen": seen})
    return epochs, num_epochs <= max_epochs


def _steps_of(sampling: Sampling, epoch: int, order: Order | None, columns: Bins) -> tuple[int, int]:
    """Return the range of steps that access these columns; the end is exclusive."""
    pieces = sampling.pieces(epoch)
    if order is not None and (columns.first, columns.end) == (0, sampling.num_samples) and pieces:
        return pieces[0].first_step, pieces[-1].first_step + pieces[-1].num_steps
    spans = [
        (int(accesses.step.min()), int(accesses.step.max()) + 1)
        for accesses in _accesses(sampling, epoch, order, columns)
    ]
    return min((low for low, _ in spans), default=1), max((high for _, high in spans), default=1)


def _accesses(sampling: Sampling, epoch: int, order: Order | None, columns: Bins) -> Iterator[SampleAccesses]:
    """Yield all accesses to the columns in chunks; column numbers are relative to the first column."""
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
            yield SampleAccesses(column=column, step=step, replica=replica)


MAX_REPLICAS, MAX_GLOBAL_BATCH = 65_536, 2**40
# Deliberate mistakes: each rank iterates over all samples; each epoch repeats the order of the first.
NO_SAMPLER, NO_SET_EPOCH = "no_sampler", "no_set_epoch"


class Seen(NamedTuple):
    """An access to a sample: by a replica, in a micro-batch (from 0) of an optimizer step (from 1)."""

    step: int
    replica: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """The distribution of samples from one start of a run to the next.

    Attributes:
        step, epoch, samples_in_epoch: progress of the run before this start.
        num_accumulated: micro-batches per step.
    """

    step: int = 0
    epoch: int = 0
    samples_in_epoch: int = 0
    batch_size: int
    num_accumulated: int
    num_replicas: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of an epoch with a constant distribution of samples.

    Attributes:
        first_place, end_place: range of the epoch's order; the end is exclusive.
        first_step: counted from 1 over all epochs.
        num_dealt: number of replicas that share a global batch; 1 without a sampler, if each replica gets the
            entire batch.
    """

    first_place: int
    end_place: int
    first_step: int
    batch_size: int
    num_accumulated: int
    num_replicas: int
    num_dealt: int

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.num_accumulated * self.num_dealt

    @property
    def num_steps(self) -> int:
        return -(-(self.end_place - self.first_place) // self.global_batch)

    def seen(self, place: int) -> Iterator[Seen]:
        """Yield the accesses to the sample at a place of this piece."""
        number, within = divmod(place - self.first_place, self.global_batch)
        share, replica = divmod(within, self.num_dealt)
        for replica_index in [replica] if self.is_shared else range(self.num_replicas):
            yield Seen(self.first_step + number, replica_index, share // self.batch_size)

    def last_shares(self) -> tuple[int, int]:
        """Return the number of samples per replica in the last step: minimum and maximum."""
        num_last = (self.end_place - self.first_place - 1) % self.global_batch + 1
        return num_last // self.num_dealt, -(-num_last // self.num_dealt)

    @property
    def is_shared(self) -> bool:
        """True if each sample goes to one replica; False if every replica uses all samples."""
        return self.num_dealt == self.num_replicas


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The complete sampling rule of a run.

    Attributes:
        dealings: one per start, in order; each applies after its `step`.
        mistake: deliberate mistake of the configuration.
    """

    num_samples: int
    seed: int
    dealings: tuple[Dealing, ...]
    mistake: str = "none"

    def seed_of(self, epoch: int) -> int:
        """Return the seed that shuffles an epoch (from 0)."""
        return self.seed + (0 if self.mistake == NO_SET_EPOCH else epoch)

    def pieces(self, epoch: int) -> list[Piece]:
        """Return the pieces of an epoch (from 0), in order."""
        pieces = []
        for number, dealing in enumerate(self.dealings):
            if dealing.epoch > epoch:
                break
            piece = self._piece(dealing, epoch)
            later = self.dealings[number + 1 :]
            if later:
                # The next start resumes from a checkpoint, whose step is the last step of this piece.
                num_steps = min(piece.num_steps, later[0].step + 1 - piece.first_step)
                end = min(piece.end_place, piece.first_place + num_steps * piece.global_batch)
                piece = Piece(**{**vars(piece), "end_place": end})
            if piece.end_place > piece.first_place:
                pieces.append(piece)
        return pieces

    def _piece(self, dealing: Dealing, epoch: int) -> Piece:
        """Return the part of this epoch that a start trains on, if the run is not resumed before its end."""
        num_dealt = 1 if self.mistake == NO_SAMPLER else dealing.num_replicas
        global_batch = dealing.batch_size * dealing.num_accumulated * num_dealt
        first_place, first_step = dealing.samples_in_epoch, dealing.step + 1
        if epoch > dealing.epoch:
            first_step += -(-(self.num_samples - first_place) // global_batch)
            first_step += (epoch - dealing.epoch - 1) * -(-self.num_samples // global_batch)
            first_place = 0
        return Piece(
            first_place=first_place,
            end_place=self.num_samples,
            first_step=first_step,
            batch_size=dealing.batch_size,
            num_accumulated=dealing.num_accumulated,
            num_replicas=dealing.num_replicas,
            num_dealt=num_dealt,
        )

    def seen(self, epoch: int, place: int) -> list[Seen]:
        """Return the accesses to the sample at a place of an epoch's order."""
        return [
            seen
            for piece in self.pieces(epoch)
            if piece.first_place <= place < piece.end_place
            for seen in piece.seen(place)
        ]


def sampling_of(config: Config, plans: Iterable[Event], num_replicas: int) -> Sampling | None:
    """Return a run's sampling rule from its `plan` events; None if they do not define it.

    Plans of older versions lack the distribution, so it is known only for a run's first start.

    Args:
        num_replicas: number of model replicas of a run with this configuration.
    """
    dealings: list[Dealing] = []
    num_samples = 0
    for plan in plans:
        raw, num_samples = plan.get("dealing"), plan["num_train"]
        if raw is None and not dealings:
            # Values of the run's first start.
            raw = {
                "step": 0,
                "epoch": 0,
                "samples_in_epoch": 0,
                "batch_size": config.batch_size,
                "num_accumulated": config.gradient_accumulation_steps,
                "num_replicas": num_replicas,
            }
        elif raw is None:
            return None
        dealing = Dealing(**{name: int(raw[name]) for name in Dealing.__dataclass_fields__})
        # A start from an earlier step discards all later ones.
        dealings = [earlier for earlier in dealings if earlier.step < dealing.step] + [dealing]
    if not dealings or num_samples < 1 or not all(map(_is_possible, dealings)):
        return None
    mistake = str(config.to_json().get("mistake", "none"))
    return Sampling(num_samples=num_samples, seed=config.seed, dealings=tuple(dealings), mistake=mistake)


def _is_possible(dealing: Dealing) -> bool:
    """Return True if the values are plausible: the file may have been altered."""
    global_batch = dealing.batch_size * dealing.num_accumulated * dealing.num_replicas
    return dealing.num_replicas <= MAX_REPLICAS and global_batch <= MAX_GLOBAL_BATCH


MAX_INTEGER = 2**53  # largest exact integer in a browser
Number = Annotated[int, Query(ge=0, le=MAX_INTEGER)]


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs/…/samples`."""
    router = Router(prefix="/live/runs/{run_id}/samples")

    @router.get("")
    @SLOW.handler
    def picture(
        run_id: str, epoch: Number = 0, by: By | None = None, first: Number = 0, last: Number = MAX_INTEGER
    ) -> dict[str, Any]:
        view = store.view(run_id)
        sampling, num_epochs = _sampling(store, view), view.config.num_epochs
        kinds = picture_kinds(sampling)
        if epoch >= num_epochs:
            raise HTTPException(status_code=422, detail=f"epoch is {epoch}; allowed: 0 to {num_epochs - 1}")
        by = by if by in kinds else next(iter(kinds), None)
        first = min(first, sampling.num_samples - 1)
        end = min(max(first, last) + 1, sampling.num_samples)
        return {
            "epoch": epoch,
            "num_epochs": num_epochs,
            "num_samples": sampling.num_samples,
            "mistake": sampling.mistake,
            "is_shuffled_anew": sampling.mistake != NO_SET_EPOCH,
            "times_seen": times_seen(sampling, epoch),
            "pieces": [_piece_values(piece) for piece in sampling.pieces(epoch)],
            "ways": kinds,
            "by": by,
            "picture": None if by is None else sample_picture(sampling, epoch, by, first, end),
        }

    @router.get("/{sample}")
    @SLOW.handler
    def sample_history(run_id: str, sample: int) -> dict[str, Any]:
        view = store.view(run_id)
        sampling = _sampling(store, view)
        if "sample" not in picture_kinds(sampling):
            limit = MAX_SHUFFLED
            raise HTTPException(
                status_code=422,
                detail=f"the order is computed for at most {limit:,} samples",
            )
        if not 0 <= sample < sampling.num_samples:
            allowed = f"0 to {sampling.num_samples - 1}"
            raise HTTPException(status_code=422, detail=f"sample is {sample}; allowed: {allowed}")
        epochs, is_all = list_accesses(sampling, sample, view.config.num_epochs)
        return {"sample": sample, "epochs": epochs, "is_all": is_all}

    return router


def _sampling(store: RunStore, view: RunView) -> Sampling:
    view.catch_up()
    config = view.config
    strategy = store.catalogue_for(view.run, config).strategies.get(config.strategy)
    num_replicas = config.num_replicas(strategy.ranks_per_replica if strategy else "one")
    with view.lock:
        sampling = sampling_of(config, view.series.plans, num_replicas)
    if sampling is None:
        detail = "the distribution of the samples is known after the run has started to train"
        raise HTTPException(status_code=404, detail=detail)
    return sampling


def _piece_values(piece: Piece) -> dict[str, Any]:
    return vars(piece) | {
        "num_steps": piece.num_steps,
        "global_batch": piece.global_batch,
        "last_shares": piece.last_shares(),
    }
