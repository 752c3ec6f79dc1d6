"""Tests of the app's Gradio setup."""

from __future__ import annotations

import gradio as gr

from ddp_gui import server


def test_gradio_s_queue_is_calmed_where_it_is_hasty() -> None:
    """Fails if Gradio renames the attribute, or polls less often by default."""
    with gr.Blocks(analytics_enabled=False) as demo:
        pass
    queue = demo._queue
    assert queue.sleep_when_free < server.QUEUE_POLL_EVERY_S
    server.calm(demo)
    assert queue.sleep_when_free == server.QUEUE_POLL_EVERY_S
    assert queue.progress_update_sleep_when_free > queue.sleep_when_free
