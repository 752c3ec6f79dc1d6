"""Tests of reports between nodes, and of what node 0 derives from them: live, lost and hung ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.cluster.disk import filled
from tests.harness import create_run, wait_until
from tests.unit.trainers.engines.several_nodes.conftest import peers_of
from trainers.contract.heartbeats import COMPUTING, HeartbeatSlot
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import HeartbeatMemory
from trainers.engines.local import hang_watch
from trainers.engines.local.stacks import Ranks
from trainers.engines.several_nodes import reports
from trainers.engines.several_nodes.node import HeadNode
from trainers.engines.several_nodes.reports import (
    FIRST_REPORT_LIMIT_S,
    LOST_AFTER_S,
    LatestReport,
    NodeReport,
    NodeReporter,
    NodesFolder,
    RanksOfNodes,
)

SOON_S = 10.0


@pytest.fixture
def other_node(run: RunDirectory, folder: NodesFolder) -> Iterator[HeartbeatMemory]:
    """Run the reporter of node 1; its rank 1 is this process."""
    board = HeartbeatMemory(2)
    HeartbeatSlot(board.address, 1).write(COMPUTING, 41)
    reporter = NodeReporter(folder, "pc2", Ranks(run, board), (1,), peers_of(1))
    reporter.begin()
    yield board
    reporter.close()


def reporter_of(run: RunDirectory, folder: NodesFolder, node: int) -> NodeReporter:
    return NodeReporter(folder, f"pc{node + 1}", Ranks(run, HeartbeatMemory(2)), (node,), peers_of(node))


def head_of(run: RunDirectory, folder: NodesFolder) -> RanksOfNodes:
    return RanksOfNodes(reporter_of(run, folder, 0))


def look(head: RanksOfNodes, monkeypatch: pytest.MonkeyPatch, after_s: float = 1.0) -> str:
    """Let node 0 read the reports again, as if `after_s` seconds had passed."""
    head._checked_at -= after_s
    monkeypatch.setattr(hang_watch, "counted_s", lambda passed_s: passed_s)
    return head.lost_node()


def test_ranks_of_another_node_are_seen_with_their_host_their_work_and_their_stacks(
    run: RunDirectory, folder: NodesFolder, other_node: HeartbeatMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = head_of(run, folder)
    wait_until("a report", lambda: look(head, monkeypatch) == "" and head.heartbeat(1), SOON_S)
    beat = head.heartbeat(1)
    assert beat is not None and (beat.step, beat.doing, beat.pid) == (41, COMPUTING, os.getpid())
    assert head.host(1) == "pc2" and head.host(0) == os.uname().nodename
    # Without a new heartbeat, node 0 inspects the process.
    effort = wait_until("its effort", lambda: (look(head, monkeypatch), head.effort(1))[1], SOON_S)
    assert effort.cpu_s > 0

    def has_stack() -> bool:
        head.ask()
        frames = [frame for thread in head.stacks(1).threads for frame in thread.frames]
        return any("test_reports" in frame.file for frame in frames)

    wait_until("its stacks, for which a busy machine may need longer than a rank is given", has_stack, SOON_S)


def test_a_node_that_never_comes_is_lost_too(
    run: RunDirectory, folder: NodesFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = head_of(run, folder)
    assert look(head, monkeypatch, FIRST_REPORT_LIMIT_S - 1) == ""
    assert "has sent no report within" in look(head, monkeypatch, 1.5)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        '{"count": 1}',
        '{"count": 1, "host": "a", "ranks": {"1": {"beat": {"count": 1}, "effort": null}}}',
        '{"count": 1, "host": "a", "ranks": [3]}',
    ],
)
def test_a_damaged_report_is_none(folder: NodesFolder, damaged: str) -> None:
    (folder.path / "1.json").write_text(damaged)
    (folder.path / "1.json").chmod(0o600)
    assert LatestReport(1).update(folder, 1.0) is None


def test_the_others_end_when_they_are_told_or_when_node_0_is_silent(
    run: RunDirectory, folder: NodesFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "counted_s", lambda passed_s: passed_s)
    reporter, silent_reporter = (reporter_of(run, folder, 1) for _ in range(2))
    silent_reporter.could_write = False
    folder.write(
        "0", asdict(NodeReport(count=1, host="pc1", ranks={0: reports.RankReport(beat=None, effort=None)}))
    )
    head, mute = HeadNode(reporter), HeadNode(silent_reporter)
    now = head._checked_at
    assert head.end_reason(now + 1) is None
    assert head.end_reason(now + LOST_AFTER_S) is None
    assert mute.end_reason(now + 9 * LOST_AFTER_S) is None, "the disk is full"
    silent = head.end_reason(now + 2 + LOST_AFTER_S)
    assert silent is not None and "Node 0 (pc1, rank 0) has not reported for" in silent
    told = HeadNode(reporter)
    folder.request_end(within_s=10.0)
    now = told._checked_at
    assert told.end_reason(now + 1) is None, "it may still end by itself"
    assert told.end_reason(now + 12) == "Node 0 has ended this start of the run."


def test_a_node_reports_on_while_the_disk_is_full(small_disk: Path) -> None:
    folder = NodesFolder(create_run(small_disk, num_nodes=2, nproc_per_node=1), "1-0")
    folder.make()
    assert folder.write("1", {"count": 1, "said": "x" * 200})
    with filled(small_disk):
        for count in (2, 3):
            assert folder.write("1", {"count": count})
            assert folder.read("1") == {"count": count}
        assert not folder.write("question", {"number": 1}), "there is none yet to overwrite"
    assert folder.write("question", {"number": 1}) and folder.read("question") == {"number": 1}
