"""Tests of the app's Gradio setup."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_gui import server
from ddp_gui.options import Options


@pytest.mark.parametrize(("engine", "is_one_users"), [("slurm", True), ("ssh", True), ("local", False)])
def test_a_script_of_one_user_alone_is_not_confined(engine: str, is_one_users: bool, tmp_path: Path) -> None:
    address = {"host": "127.0.0.1", "port": 7860, "runs_dir": tmp_path, "open_browser": False}
    options = Options(**address, auth_file=tmp_path, num_accounts=1, engine=engine)
    assert server._script_rules(options).is_one_users is is_one_users
