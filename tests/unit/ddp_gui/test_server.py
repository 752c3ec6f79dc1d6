"""How our app sets Gradio up."""

from __future__ import annotations

import gradio as gr

from ddp_gui import server


def test_gradio_s_queue_is_calmed_where_it_is_hasty() -> None:
    """Should Gradio name it differently, or look seldom by itself, this says so."""
    with gr.Blocks(analytics_enabled=False) as demo:
        pass
    queue = demo._queue
    assert queue.sleep_when_free < server.QUEUE_POLL_EVERY_S
    server.calm(demo)
    assert queue.sleep_when_free == server.QUEUE_POLL_EVERY_S
    assert queue.progress_update_sleep_when_free > queue.sleep_when_free
