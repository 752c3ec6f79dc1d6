"""A run of two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import create_run
from trainers.contract.rundir import RunDirectory
from trainers.engines.several_nodes.peers import Lease, Node, Peers
from trainers.engines.several_nodes.reports import NodesFolder


def peers_of(node: int) -> Peers:
    """Return the peers of a node on this machine; its lease is not enforced."""
    return Peers(Node(rank=node, num_nodes=2, head="127.0.0.1", port=29_500), Lease(lambda: None))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(tmp_path, num_nodes=2, nproc_per_node=1)


@pytest.fixture
def folder(run: RunDirectory) -> NodesFolder:
    made = NodesFolder(run, "7-0")
    made.make()
    return made
