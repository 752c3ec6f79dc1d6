"""Runs in a notebook: started, watched and controlled from cells (docs/notebooks.md)."""

from ddp_gui.notebook.page import show_page
from ddp_gui.notebook.runs import Run, open_run, start

__all__ = ["Run", "open_run", "show_page", "start"]
