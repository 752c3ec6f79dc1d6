"""Removes work that Gradio does in its event loop at every call and that is not needed here.

It blocks the loop for 40 ms per call without a session, or with a new one, and for 50 ms per list of 3,000
runs, in which it looks for files. No setting of Gradio's turns it off;
`tests/unit/ddp_gui/background/test_workers.py` and `tests/integration/test_loop_delay.py` notice when another
version does it differently.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from gradio import processing_utils, utils
from gradio.blocks import Block
from gradio.components.api_component import Api
from gradio.state_holder import SessionState

_original = SessionState.__init__
_move_files = processing_utils.async_move_files_to_cache
_add_root_url = processing_utils.add_root_url


class _List(list[Any]):
    """A result without files."""


class _Object(dict[str, Any]):
    """A result without files."""


def _begin(self: SessionState, blocks: Any) -> None:
    # The settings of components are stored only for deep links, which are closed; those that a handler
    # changes are added then.
    _original(self, SimpleNamespace(default_config=blocks.default_config, blocks={}))  # type: ignore[arg-type]


async def _move_files_unless_plain(data: Any, block: Any, *options: Any, **named: Any) -> Any:
    # What our named endpoints take and return holds no files.
    if not isinstance(block, Api):
        return await _move_files(data, block, *options, **named)
    return _List(data) if isinstance(data, list) else _Object(data) if isinstance(data, dict) else data


def _add_root_url_unless_plain(data: Any, root_url: str, previous_root_url: str | None) -> Any:
    if isinstance(data, list) and data and all(isinstance(value, _List | _Object) for value in data):
        return data
    return _add_root_url(data, root_url, previous_root_url)


def _kinds(kind: type[Block]) -> Iterator[type[Block]]:
    for narrower in kind.__subclasses__():
        yield narrower
        yield from _kinds(narrower)


def lighten() -> None:
    """Start sessions without a description of the whole page, and calls without searching for matplotlib.

    Do not look for files in what named endpoints take and return. Find out the parameters of each component
    once: to fill in the form, Gradio asks for them 240 times, which takes 20 ms.
    """
    for kind in _kinds(Block):
        kind.__init__.__signature__ = inspect.signature(kind.__init__)  # type: ignore[attr-defined]
    processing_utils.async_move_files_to_cache = _move_files_unless_plain
    processing_utils.add_root_url = _add_root_url_unless_plain
    SessionState.__init__ = _begin  # type: ignore[method-assign]
    utils.MatplotlibBackendMananger = contextlib.nullcontext  # type: ignore[misc, assignment]
