"""Resume of a script's run: from its checkpoint, on as many ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_gui.auth.rights import DataAccess
from ddp_gui.queue.scheduler import Placed
from ddp_gui.runs.runs import RunStore
from ddp_gui.train.api import Api
from trainers.contract import checkpoint_files, config, rundir
from trainers.contract.checkpoint_files import Sealing
from trainers.contract.config import ConfigError
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    raw = {"model": "script", "dataset": "script", "script": "a.py", "nproc_per_node": 2}
    run = rundir.create(tmp_path, config.parse(raw))
    run.write_status(Status(state="stopped"))
    return run


def save(run: RunDirectory, step: int) -> None:
    """Make a checkpoint that can be listed."""
    aside = checkpoint_files.partial_path(run, step)
    aside.mkdir()
    (aside / "script.pt").write_bytes(b"values")
    with Sealing() as sealing:
        about = {"strategy": "script", "world_size": 2, "reason": "button"}
        checkpoint_files.publish(run, step, about, sealing.finish(aside))


def test_a_script_is_resumed_from_its_checkpoint_as_it_was_started(run: RunDirectory) -> None:
    resumed: list[Any] = []

    def resume(run: RunDirectory, step: int, plan: Any, owner: str) -> Placed:
        resumed.append((step, plan, owner))
        return Placed(run=run, ticket=cast("Any", None), snapshot=cast("Any", None))

    line = cast("Any", SimpleNamespace(resume=resume))
    nothing = cast("Any", SimpleNamespace())
    access = DataAccess(run.path.parent)
    api = Api(
        RunStore(run.path.parent, nothing),
        line,
        nothing,
        access,
        plan_script=lambda _run: cast("Any", "a plan"),
    )
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        asyncio.run(api.resume_run(run.run_id))
    save(run, 7)
    save(run, 9)
    assert asyncio.run(api.resume_run(run.run_id, 7))["message"] == "Continuing from step 7."
    asyncio.run(api.resume_run(run.run_id, 9, 2))
    assert resumed == [(7, "a plan", ""), (9, "a plan", "")]
    with pytest.raises(ConfigError, match="nproc_per_node is 3; allowed: null"):
        asyncio.run(api.resume_run(run.run_id, None, 3))
    with pytest.raises(ConfigError, match="more_epochs is 5; allowed: null"):
        asyncio.run(api.train_more(run.run_id, 5))
    assert len(resumed) == 2, "a refusal starts nothing"
