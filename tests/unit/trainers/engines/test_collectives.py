"""Tests of which ranks are missing from a collective, and of the data in torch's flight recorder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.harness import wait_until
from trainers.contract.heartbeats import Answer, Collective, Group, from_bytes, to_bytes
from trainers.engines import heartbeats
from trainers.engines.heartbeats import Gap
from trainers.watch import flight_recorder

FIRST = Collective(number=1, name="all-reduce", dtype="float32", num_bytes=8)
SECOND = Collective(number=2, name="all-reduce", dtype="float32", num_bytes=1_200_000)
OTHER_SIZE = Collective(number=2, name="all-reduce", dtype="float32", num_bytes=16)


def view(newest: Collective | None, unfinished: Collective | None = None, num_ranks: int = 3) -> list[Group]:
    """Return the groups of a rank that belongs to one group of all ranks."""
    return [Group(name="0", ranks=tuple(range(num_ranks)), newest=newest, unfinished=unfinished)]


def test_nobody_is_missing_where_all_are_in_the_same_or_have_left_it() -> None:
    assert heartbeats.gaps({}) == ()
    assert heartbeats.gaps({rank: view(SECOND) for rank in range(3)}) == ()
    assert heartbeats.gaps({rank: view(SECOND, SECOND) for rank in range(3)}) == ()
    left_it = {0: view(SECOND, SECOND), 1: view(SECOND, SECOND), 2: view(SECOND)}
    assert heartbeats.gaps(left_it) == ()


def test_one_that_never_came_is_missing_and_one_that_says_nothing_is_not() -> None:
    (gap,) = heartbeats.gaps({0: view(SECOND, SECOND), 2: view(FIRST)})
    assert gap == Gap(waiting={0: SECOND}, missing=(2,))
    assert str(gap) == "rank 2 never entered all-reduce 2 (float32, 1.2 MB), in which rank 0 waits"
    (gap,) = heartbeats.gaps({0: view(SECOND, FIRST), 1: view(FIRST, FIRST), 2: view(None)})
    assert gap == Gap(waiting={0: FIRST, 1: FIRST}, missing=(2,)), "the first unfinished one counts"
    assert heartbeats.blamed_ranks([gap]) == (2,)


def test_same_number_and_another_size_is_a_mismatch() -> None:
    found = heartbeats.gaps(
        {0: view(SECOND, SECOND), 1: view(OTHER_SIZE, OTHER_SIZE), 2: view(SECOND, SECOND)}
    )
    assert [gap.is_mismatch for gap in found] == [True]
    assert heartbeats.blamed_ranks(found) == (1,)
    two = heartbeats.gaps({0: view(SECOND, SECOND, 2), 1: view(OTHER_SIZE, OTHER_SIZE, 2)})
    assert heartbeats.blamed_ranks(two) == (), "one against one"


def test_what_a_rank_says_travels_as_bytes_and_nonsense_says_nothing() -> None:
    for said in (Answer(groups=tuple(view(SECOND, FIRST)), gradients_done=7), Answer()):
        assert from_bytes(to_bytes(said)) == said
    without_groups, without_ranks = b'{"groups": 3}', b'{"groups": [{"name": "0"}], "gradients_done": 1}'
    for nonsense in (b"", b"{", b"[3]", without_groups, without_ranks, b"null", b"\xff"):
        assert from_bytes(nonsense) is None


def test_behind_is_a_rank_whose_gpu_lacks_gradients_that_others_have() -> None:
    behind = {0: Answer(gradients_done=7), 1: Answer(gradients_done=6), 2: Answer()}
    assert heartbeats.behind_on_gpu(behind) == (1,)
    assert heartbeats.behind_on_gpu(behind | {1: Answer(gradients_done=7)}) == ()
    assert heartbeats.behind_on_gpu({0: Answer(), 1: Answer()}) == (), "nobody knows"


@pytest.fixture
def lone_group(tmp_path: Path) -> Iterator[None]:
    """A process group of one rank, whose collectives always complete."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("lone_group")
def test_torchs_own_recorder_says_what_was_entered_and_left() -> None:
    """Pins a private API of torch.

    If torch changes it, this test fails and hangs are reported without collectives.
    """
    dist.all_reduce(torch.zeros(250_000))
    dist.broadcast(torch.zeros(3, dtype=torch.int64), 0)

    def retired() -> Sequence[Group] | None:
        """Return the groups once all collectives are retired.

        Gloo's own thread retires a collective shortly after `wait` returns.
        """
        found = flight_recorder.recorded_groups()
        assert found is not None
        return None if any(group.unfinished for group in found) else found

    found = wait_until("both collectives being retired", retired, 10)
    (group,) = found
    assert group.ranks == (0,)
    assert group.newest is not None
    assert (group.newest.name, group.newest.dtype, group.newest.num_bytes) == ("broadcast", "int64", 24)
    raw = json.loads(flight_recorder.c10d._dump_fr_trace_json())  # type: ignore[attr-defined]
    names = {"profiling_name", "process_group", "collective_seq_id", "op_id", "is_p2p", "retired"}
    assert names | {"input_dtypes", "input_sizes"} <= raw["entries"][-1].keys()
    assert raw["entries"][-1]["profiling_name"] == "gloo:broadcast"
    assert from_bytes(flight_recorder.flight_record_text(lambda: 3)) == Answer(groups=found, gradients_done=3)
