"""The command line of the sandbox for scripts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import sandbox
from trainers.files.json_files import write_json_atomically


def test_what_is_bound_is_not_hidden_by_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bwrap mounts in the order of its options, and the environment may be below /tmp."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    run, config = RunDirectory(tmp_path / "run"), Config()
    rundir.make(run, config)
    write_json_atomically(run.path / sandbox.RECORD_FILE, {"readable": ["/srv/data"]}, mode=0o600)
    command = sandbox.wrap_command(run, config, tmp_path, ["python", "train.py"])
    assert command[-3:] == ["--", "python", "train.py"]
    last_empty = max(place for place, word in enumerate(command) if word == "--tmpfs")
    for folder in (sys.prefix, str(run.path), "/srv/data"):
        assert command.index(folder) > last_empty, folder
