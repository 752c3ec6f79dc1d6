"""The order in which an epoch goes through the samples: `torch.randperm`'s own, without torch.

torch shuffles on the CPU as Fisher and Yates did: place i changes places with one at or behind it, chosen by
the next number of a Mersenne Twister (torch, ATen/native/TensorFactories.cpp, `randperm_cpu`). NumPy's
`RandomState` gives the same numbers, and the swaps are followed all at once instead of one by one.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.int32]

# torch takes two numbers at a time from here on; nobody looks at so many.
MOST_SAMPLES = (2**32 - 1) // 20
# torch seeds the generator with so many bits of the seed.
_SEED_BITS = 0xFFFF_FFFF


@functools.lru_cache(maxsize=4)
def shuffled(num_samples: int, seed: int) -> Order:
    """Return which sample stands at each place: `torch.randperm` of a CPU generator with this seed.

    Takes about 0.2 s for a million. Nobody may write into it.
    """
    assert 0 <= num_samples < MOST_SAMPLES, "torch shuffles more in another way"
    places = np.arange(num_samples, dtype=np.int32)
    if num_samples > 1:
        numbers = np.random.RandomState(seed & _SEED_BITS).randint(0, 2**32, num_samples - 1, np.uint32)
        partners = places.copy()
        partners[:-1] += (numbers % np.arange(num_samples, 1, -1, dtype=np.uint32)).astype(np.int32)
        places = _swapped(partners)
    places.flags.writeable = False
    return places


def _swapped(partners: Order) -> Order:
    """Return what stands where after each place, in order, has changed places with its partner.

    What stands at place i when its turn comes was put there by the last earlier place whose partner it was,
    and had been found there in the same way: a chain, which doubles its stride until it is at its end.
    """
    places = np.arange(len(partners), dtype=np.int32)
    given_by = places.copy()
    is_earlier = partners > places
    given_by[partners[is_earlier]] = places[is_earlier]  # of several the last one stays
    while not np.array_equal(further := given_by[given_by], given_by):
        given_by = further
    # Place i keeps what it found at its partner: what the partner's newest visitor before it had left there.
    by_partner = np.argsort(partners, kind="stable").astype(np.int32)
    is_same = partners[by_partner[1:]] == partners[by_partner[:-1]]
    kept = partners.copy()
    kept[by_partner[1:][is_same]] = given_by[by_partner[:-1][is_same]]
    return kept
