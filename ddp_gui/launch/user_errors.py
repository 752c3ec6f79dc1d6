"""Errors that a user can act on, shown with their text."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from typing import TypeVar

import gradio as gr

from ddp_gui.http.visible import visible
from ddp_gui.plan.catalogue import CatalogueError
from ddp_gui.plan.own_data import InspectionError
from trainers.engines.base import StartError

Result = TypeVar("Result")
SAID = (ValueError, OSError, StartError, CatalogueError, InspectionError)


def shown_as_text(error: Exception) -> gr.Error:
    """Return an error whose text Gradio shows unchanged: its messages are HTML."""
    words = error.message if isinstance(error, gr.Error) else str(error)
    return gr.Error(html.escape(visible(words)), print_exception=False)


def in_plain_words(action: Callable[[], Result]) -> Result:
    """Turn errors that a user can cause into errors that the page shows with their text."""
    try:
        return action()
    except SAID as error:
        raise gr.Error(str(error), print_exception=False) from error


async def waiting_in_plain_words(action: Awaitable[Result]) -> Result:
    """Do the same for coroutines."""
    try:
        return await action
    except SAID as error:
        raise gr.Error(str(error), print_exception=False) from error
