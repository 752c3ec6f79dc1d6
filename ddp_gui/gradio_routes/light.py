"""Removes work that Gradio does in its event loop at every call and that is not needed here.

It blocks the loop for 40 ms per call without a session, or with a new one. No setting of Gradio's turns it
off; `tests/unit/ddp_gui/background/test_workers.py` notices when another version does it differently.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from gradio import utils
from gradio.state_holder import SessionState

_original = SessionState.__init__


def _begin(self: SessionState, blocks: Any) -> None:
    # The settings of components are stored only for deep links, which are closed; those that a handler
    # changes are added then.
    _original(self, SimpleNamespace(default_config=blocks.default_config, blocks={}))  # type: ignore[arg-type]


def lighten() -> None:
    """Start sessions without a description of the whole page, and calls without searching for matplotlib."""
    SessionState.__init__ = _begin  # type: ignore[method-assign]
    utils.MatplotlibBackendMananger = contextlib.nullcontext  # type: ignore[misc, assignment]
