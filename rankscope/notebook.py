"""Exports `ddp_gui.notebook` of the installed program (docs/notebooks.md)."""

from __future__ import annotations

import rankscope

rankscope.add_to_path()

from ddp_gui.notebook import Run, open_run, show_page, start  # noqa: E402
from ddp_gui.notebook.page import tile  # noqa: E402

__all__ = ["Run", "open_run", "show_page", "start", "tile"]
