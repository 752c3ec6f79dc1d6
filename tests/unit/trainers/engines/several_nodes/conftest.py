"""A run of two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import create_run
from trainers.contract.rundir import RunDirectory
from trainers.engines.several_nodes.reports import NodesFolder


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(tmp_path, num_nodes=2, nproc_per_node=1)


@pytest.fixture
def folder(run: RunDirectory) -> NodesFolder:
    made = NodesFolder(run, "7-0")
    made.make()
    return made
