"""Named endpoints of the Gradio app, run as the current user."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from ddp_gui.auth import current_user
from ddp_gui.background.workers import CLICKS, TooManyError, Workers

Function = Callable[..., Any]


def register(*functions: Function, workers: Workers = CLICKS) -> None:
    """Add functions to the Gradio app under construction as named endpoints, each under its own name."""
    for function in functions:
        # Not queued by Gradio, and not serialised if a program uses its queue anyway: a click must not wait
        # behind another person's.
        asked = as_current_user(_with_checked_kinds(function), workers)
        gr.api(asked, api_name=function.__name__, queue=False, concurrency_limit=None)


def _with_checked_kinds(function: Function) -> Function:
    """Wrap an endpoint so that text, null, lists and objects are passed on only as it is annotated."""
    hints = typing.get_type_hints(function)
    kinds = {name: _kinds(hints.get(name, Any)) for name in inspect.signature(function).parameters}

    def check(values: Sequence[Any]) -> None:
        for (name, wanted), value in zip(kinds.items(), values, strict=False):
            kind = next((each for each in (str, list, dict, type(None)) if isinstance(value, each)), float)
            if wanted and kind not in wanted and not (kind is str and float in wanted):
                raise gr.Error(f"{name} is {_NAMES[kind]}, which it cannot be", print_exception=False)

    @functools.wraps(function)
    def checked(*values: Any) -> Any:
        check(values)
        return function(*values)

    @functools.wraps(function)
    async def checked_later(*values: Any) -> Any:
        check(values)
        return await function(*values)

    return checked_later if inspect.iscoroutinefunction(function) else checked


def _kinds(hint: Any) -> set[type]:
    """Return the kinds of JSON values that an annotation allows; none where it allows all."""
    if hint is Any:
        return set()
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    plain = {typing.get_origin(part) or part for part in parts}
    return {kind if kind in _NAMES else float for kind in plain}


_NAMES: dict[type, str] = {
    str: "text", float: "a number", list: "a list", dict: "an object", type(None): "null"
}  # fmt: skip


def as_current_user(function: Function, workers: Workers = CLICKS) -> Function:
    """Wrap a Gradio handler so that `current_user` is set inside it, and it runs in these threads.

    Gradio runs what is queued in tasks of its own, which context variables do not reach; the request does.
    """

    @functools.wraps(function)
    async def asked(asked_request: gr.Request, *values: Any) -> Any:
        with current_user.asked_by(_sender_of(asked_request)):
            if inspect.iscoroutinefunction(function):
                return await function(*values)
            try:
                return await workers.run(function, *values)
            except TooManyError as error:
                raise gr.Error(str(error), print_exception=False) from error

    hints = typing.get_type_hints(function)
    first = inspect.Parameter("asked_request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    # Gradio reads a handler's parameters from this; it injects the request itself and hides it.
    asked.__signature__ = signature.replace(parameters=[first, *parameters])  # type: ignore[attr-defined]
    asked.__annotations__ = hints | {"asked_request": gr.Request}
    # inspect must not look through the wrapper.
    del asked.__wrapped__
    return asked


def _sender_of(request: gr.Request) -> current_user.Person:
    scope = request.request.scope if request.request is not None else {}
    sender = scope.get(current_user.SCOPE_KEY)
    return sender if isinstance(sender, current_user.Person) else current_user.current_user()
