"""What Gradio does in its event loop at every call, and nobody here needs, is left out.

While the loop is at it everybody waits: 40 ms a call that names no session, or a new one. No setting of
Gradio's reaches it; `tests/unit/ddp_gui/background/test_workers.py` notices when another version does it
differently.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from gradio import utils
from gradio.state_holder import SessionState

_original = SessionState.__init__


def _begin(self: SessionState, blocks: Any) -> None:
    # The settings of each component are kept only for deep links, which are closed; those that a handler
    # changes are added when it does.
    _original(self, SimpleNamespace(default_config=blocks.default_config, blocks={}))  # type: ignore[arg-type]


def lighten() -> None:
    """Let a session begin without a description of the whole page, and no call look for matplotlib."""
    SessionState.__init__ = _begin  # type: ignore[method-assign]
    utils.MatplotlibBackendMananger = contextlib.nullcontext  # type: ignore[misc, assignment]
