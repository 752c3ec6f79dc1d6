"""The list of runs. The browser draws it (`assets/js/runs.js`) from `/live/runs`."""

from __future__ import annotations

import gradio as gr


def build() -> None:
    """Lay the page out inside the Blocks under construction."""
    gr.Navbar(main_page_name="Train")
    gr.HTML('<div id="ddp-runs"></div>')
