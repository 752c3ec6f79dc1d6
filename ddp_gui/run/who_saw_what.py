"""Which rank sees which sample at which step: the rule of training's sampler, without its indices.

Each epoch goes through all samples in an order of its own. A global batch is the next so many places of it,
dealt out to the ranks like cards, and each rank's share to its micro-batches: a place says step and rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainers.contract.config import Config
from trainers.contract.events import Event

MOST_REPLICAS, MOST_IN_A_STEP = 65_536, 2**40
# Mistakes: every rank goes through all samples by itself; each epoch has the order of the first.
NO_SAMPLER, NO_SET_EPOCH = "no_sampler", "no_set_epoch"


class Seen(NamedTuple):
    """One look at a sample: by a replica, in a micro-batch (from 0) of an optimizer step (from 1)."""

    step: int
    replica: int
    micro_batch: int


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """How samples are dealt out from one start of a run to the next.

    Attributes:
        step, epoch, samples_in_epoch: what was done before it.
        num_accumulated: micro-batches of a step.
    """

    step: int = 0
    epoch: int = 0
    samples_in_epoch: int = 0
    batch_size: int
    num_accumulated: int
    num_replicas: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of an epoch in which the samples are dealt out alike.

    Attributes:
        first_place, end_place: of the epoch's order.
        first_step: counted from 1, over the whole run.
        num_dealt: among how many replicas a global batch is dealt out; with no sampler each has all of it.
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
        """Yield who sees the sample at a place of this piece."""
        number, within = divmod(place - self.first_place, self.global_batch)
        share, replica = divmod(within, self.num_dealt)
        for who in [replica] if self.is_shared else range(self.num_replicas):
            yield Seen(self.first_step + number, who, share // self.batch_size)

    def last_shares(self) -> tuple[int, int]:
        """Return how many samples a replica has in the last step: the fewest and the most."""
        rest = (self.end_place - self.first_place - 1) % self.global_batch + 1
        return rest // self.num_dealt, -(-rest // self.num_dealt)

    @property
    def is_shared(self) -> bool:
        """Whether each sample is one replica's; else all of them see all."""
        return self.num_dealt == self.num_replicas


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The whole rule of one run.

    Attributes:
        dealings: one for each start, in order; a later one holds from its step on.
        mistake: that of the configuration.
    """

    num_samples: int
    seed: int
    dealings: tuple[Dealing, ...]
    mistake: str = "none"

    def seed_of(self, epoch: int) -> int:
        """Return what the order of an epoch (from 0) is shuffled with."""
        return self.seed + (0 if self.mistake == NO_SET_EPOCH else epoch)

    def pieces(self, epoch: int) -> list[Piece]:
        """Return the pieces of an epoch (from 0); the last one lasts until its end."""
        found = []
        for number, dealing in enumerate(self.dealings):
            if dealing.epoch > epoch:
                break
            piece = self._piece(dealing, epoch)
            later = self.dealings[number + 1 :]
            if later:
                # What the next start goes on from was the last of it.
                num_steps = min(piece.num_steps, later[0].step + 1 - piece.first_step)
                end = min(piece.end_place, piece.first_place + num_steps * piece.global_batch)
                piece = Piece(**{**vars(piece), "end_place": end})
            if piece.end_place > piece.first_place:
                found.append(piece)
        return found

    def _piece(self, dealing: Dealing, epoch: int) -> Piece:
        """Return this epoch as it would be if nothing came after this dealing."""
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
        """Return who sees the sample at a place of an epoch's order."""
        return [
            seen
            for piece in self.pieces(epoch)
            if piece.first_place <= place < piece.end_place
            for seen in piece.seen(place)
        ]


def sampling_of(config: Config, plans: Iterable[Event], num_replicas: int) -> Sampling | None:
    """Return the rule of a run by its `plan` events; None where they do not say it.

    An older version's plan says nothing of how it goes on: only of a run's first start it is known.

    Args:
        num_replicas: how many copies of the model a run of this configuration has.
    """
    dealings: list[Dealing] = []
    num_samples = 0
    for plan in plans:
        said, num_samples = plan.get("dealing"), plan["num_train"]
        if said is None and not dealings:
            said = _from_configuration(config, num_replicas)
        elif said is None:
            return None
        dealing = Dealing(**{name: int(said[name]) for name in Dealing.__dataclass_fields__})
        # A start from an earlier step takes back what came after it.
        dealings = [earlier for earlier in dealings if earlier.step < dealing.step] + [dealing]
    if not dealings or num_samples < 1 or not all(map(_is_possible, dealings)):
        return None
    mistake = str(config.to_json().get("mistake", "none"))
    return Sampling(num_samples=num_samples, seed=config.seed, dealings=tuple(dealings), mistake=mistake)


def _from_configuration(config: Config, num_replicas: int) -> Mapping[str, Any]:
    """Return how a run begins whose plan does not say it."""
    return {
        "step": 0,
        "epoch": 0,
        "samples_in_epoch": 0,
        "batch_size": config.batch_size,
        "num_accumulated": config.gradient_accumulation_steps,
        "num_replicas": num_replicas,
    }


def _is_possible(dealing: Dealing) -> bool:
    """Tell whether a machine could have trained so: what is read may have been altered."""
    global_batch = dealing.batch_size * dealing.num_accumulated * dealing.num_replicas
    return dealing.num_replicas <= MOST_REPLICAS and global_batch <= MOST_IN_A_STEP
