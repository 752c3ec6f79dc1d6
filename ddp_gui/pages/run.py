"""One run, live. The browser draws it (`assets/js/run.js`) from the live routes."""

from __future__ import annotations

import gradio as gr


def build() -> None:
    """Lay the page out inside the Blocks under construction."""
    gr.Navbar(main_page_name="Train")
    gr.HTML('<div id="ddp-run"></div>')
