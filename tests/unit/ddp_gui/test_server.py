"""Tests of the app's Gradio setup."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
import pytest

from ddp_gui import server
from ddp_gui.options import Options


def test_gradio_s_queue_is_calmed_where_it_is_hasty() -> None:
    """Fails if Gradio renames the attribute, or polls less often by default."""
    with gr.Blocks(analytics_enabled=False) as demo:
        pass
    queue = demo._queue
    assert queue.sleep_when_free < server.QUEUE_POLL_EVERY_S
    server.slow_queue_polling(demo)
    assert queue.sleep_when_free == server.QUEUE_POLL_EVERY_S
    assert queue.progress_update_sleep_when_free > queue.sleep_when_free


@pytest.mark.parametrize(("engine", "is_one_users"), [("slurm", True), ("ssh", True), ("local", False)])
def test_a_script_is_confined_unless_its_engine_uses_the_account_of_the_only_user(
    engine: str, is_one_users: bool, tmp_path: Path
) -> None:
    address = {"host": "127.0.0.1", "port": 7860, "runs_dir": tmp_path, "open_browser": False}
    options = Options(**address, auth_file=tmp_path, num_accounts=1, engine=engine)
    assert server._script_rules(options).is_one_users is is_one_users
