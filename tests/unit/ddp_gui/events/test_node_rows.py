"""Tests of the rows of nodes, and of the ranks that are sent to viewers who expanded a node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events import fold, run_view
from ddp_gui.events.run_view import RunView
from ddp_gui.events.tables import ChartView
from tests.ui.run.written_runs import NUM_NODES, RANKS_A_NODE, run_of_nodes

SLOW = RANKS_A_NODE + 2
# For a viewer of 64 machines with 8 ranks each, one of them expanded.
MOST_BYTES_A_SECOND = 20_000


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    made = RunView(run_of_nodes(tmp_path / "nodes-1"), 5)
    made.catch_up()
    return made


def ranks_in(message: run_view.Payload) -> dict[str, set[int]]:
    """Return the ranks that occur in each part of a message."""
    found = {
        part: {entry["rank"] for entry in message[part]} for part in ("ranks", "devices", "rank_history")
    }
    curves = {int(name.partition(":")[2]) for name in message["traces"] if name.startswith("memory:")}
    return found | {"traces": curves}


def rows_in(message: run_view.Payload) -> list[dict[str, Any]]:
    return [dict(zip(message["nodes"]["fields"], row, strict=True)) for row in message["nodes"]["rows"]]


@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [
        (None, range(NUM_NODES * RANKS_A_NODE)),
        (frozenset(), ()),
        (frozenset({1}), range(RANKS_A_NODE, 2 * RANKS_A_NODE)),
        (frozenset({0, 2, 99}), [*range(RANKS_A_NODE), *range(2 * RANKS_A_NODE, 3 * RANKS_A_NODE)]),
    ],
)
def test_only_ranks_of_open_machines_are_sent_and_a_row_of_each(
    view: RunView, nodes: frozenset[int] | None, ranks: Iterable[int]
) -> None:
    message = run_view.message_for(view, -1, ChartView(nodes=nodes))
    assert all(found == set(ranks) for found in ranks_in(message).values())
    rows = rows_in(message)
    assert [row["node"] for row in rows] == list(range(NUM_NODES))
    row = rows[1]
    assert (row["host"], row["num_ranks"], row["idlest"], row["idlest_percent"]) == ("pc1", 8, SLOW, 40)
    assert (row["slowest"], row["slowest_s"]) == (SLOW, 0.1)
    assert rows[0]["slowest_s"] == pytest.approx(0.06)


def test_a_machine_of_which_nothing_is_known_has_no_row_and_unknown_numbers_are_none() -> None:
    assert fold.node_rows_of_run({}, 2, 4) == []
    devices = {"devices": [{"rank": 2, "node": 1, "utilization_percent": None, "memory_used_bytes": None}]}
    ranks = {"ranks": [{"rank": 2, "step_time_s": None, "base_memory_bytes": 5, "peak_memory_bytes": 12}]}
    (row,) = fold.node_rows_of_run({"devices": devices, "ranks": ranks}, 2, 4)  # type: ignore[dict-item]
    assert row == {
        "node": 1, "host": None, "num_ranks": 1, "memory_bytes": 0, "busy_percent": None, "idlest": None,
        "idlest_percent": None, "slowest": None, "slowest_s": None, "grown_bytes": 7,
    }  # fmt: skip


def test_a_second_of_64_machines_is_small_for_a_viewer_with_one_open(tmp_path: Path) -> None:
    view = RunView(run_of_nodes(tmp_path / "many-1", num_nodes=64), 5)
    view.catch_up()
    newest = view.series.next_seq
    message = run_view.message_for(view, newest - 3, ChartView(nodes=frozenset({0})), run_view.Known(view))
    assert len(rows_in(message)) == 64 and len(message["ranks"]) == len(message["devices"]) == 8
    assert len(run_view.encode_message(message)) < MOST_BYTES_A_SECOND
