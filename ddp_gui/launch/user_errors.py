"""Errors that a user can act on, shown with their text."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from typing import TypeVar

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse

from ddp_gui.http.visible import visible
from ddp_gui.plan.catalogue import CatalogueError
from ddp_gui.plan.own_data import InspectionError
from trainers.engines.base import StartError
from trainers.machine.os_errors import NO_SPACE, explain

Result = TypeVar("Result")
SAID = (ValueError, OSError, StartError, CatalogueError, InspectionError)


def shown_as_text(error: Exception) -> gr.Error:
    """Return an error whose text Gradio shows unchanged: its messages are HTML."""
    words = error.message if isinstance(error, gr.Error) else explain(error)
    return gr.Error(html.escape(visible(words)), print_exception=False)


def _text_of(error: Exception) -> str:
    words = explain(error)
    return words[:1].upper() + words[1:] if isinstance(error, OSError) else words


async def answer_os_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer a route whose file operation failed: 507 for a full disk, otherwise 503, with a sentence."""
    is_full = isinstance(error, OSError) and error.errno in NO_SPACE
    return JSONResponse({"detail": _text_of(error)}, status_code=507 if is_full else 503)


def in_plain_words(action: Callable[[], Result]) -> Result:
    """Turn errors that a user can cause into errors that the page shows with their text."""
    try:
        return action()
    except SAID as error:
        raise gr.Error(_text_of(error), print_exception=False) from error


async def waiting_in_plain_words(action: Awaitable[Result]) -> Result:
    """Do the same for coroutines."""
    try:
        return await action
    except SAID as error:
        raise gr.Error(_text_of(error), print_exception=False) from error
