"""A click on Stop opens its run once and reads the run's status once."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ddp_gui.auth.rights import DataAccess
from ddp_gui.runs.runs import RunStore
from ddp_gui.train.api import Api
from tests.harness import REPOSITORY
from trainers.contract import config, rundir
from trainers.contract.status import Status

PAGE_MODULES = {"operations", "train/api", "runs/runs", "auth/rights", "launch/launcher"}


def test_stop_passes_five_modules_of_the_page_and_reads_the_state_once(tmp_path: Path) -> None:
    run = rundir.create(tmp_path, config.parse({}))
    run.write_status(Status(state="running"))
    nothing = cast("Any", SimpleNamespace())
    api = Api(RunStore(tmp_path, nothing), nothing, nothing, DataAccess(tmp_path))
    calls = Counter[tuple[str, str]]()

    def note(frame: Any, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(REPOSITORY):
            calls[str(path.relative_to(REPOSITORY).with_suffix("")), frame.f_code.co_name] += 1

    lock = run.acquire_lock()  # as the supervisor of a live run
    try:
        sys.setprofile(note)
        answer = api.stop_run(run.run_id)
    finally:
        sys.setprofile(None)
        os.close(lock)
    assert answer["state"] == "running" and answer["message"] == "Saving a checkpoint, then stopping."
    assert b'"name":"stop"' in run.commands.read_bytes()
    passed = {module.removeprefix("ddp_gui/") for module, _ in calls if module.startswith("ddp_gui/")}
    assert passed == PAGE_MODULES
    once = (
        ("trainers/contract/rundir", "open_run"),
        ("trainers/engines/liveness", "read_status"),
        ("trainers/contract/rundir", "is_locked"),
        ("trainers/contract/status", "read"),
    )
    assert [calls[each] for each in once] == [1, 1, 1, 1]
    assert ("trainers/contract/rundir", "read_config") not in calls
