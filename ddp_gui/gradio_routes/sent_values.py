"""Validates what is sent to Gradio's functions: JSON of bounded depth, with uploaded files only.

Gradio treats every object with a path as a file, whichever component it is meant for: it would copy that file
of this machine, or fetch it from another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr
import orjson
from gradio.queueing import Queue

from ddp_gui.auth.current_user import current_user
from ddp_gui.gradio_routes import sessions
from ddp_gui.http.asgi import Message, Receive, Refused

MAX_DEPTH = 40
# The largest request of the page deletes some thousand runs with one click.
MAX_VALUES = 20_000
_SESSION = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Functions:
    """The names of Gradio's functions by their numbers; the name in the request's address, if any."""

    names: Mapping[int, str | bool | None]
    called: str | None = None
    # The components whose values each one takes.
    inputs: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    # The result is fetched by another request.
    answers_later: bool = False


async def checked_body(
    receive: Receive, incoming: Path, functions: Functions, queue: Queue | None = None
) -> Receive:
    """Read and check a request's body; return a `receive` that replays it, for its sender's own session.

    Args:
        incoming: the folder of its sender's new uploads.
        queue: Gradio's queue of calls.

    Raises:
        Refused: when it is not JSON, too deep, too large, names a file that was not uploaded, or an invalid
            function or session.
    """
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
    body = b"".join(pieces)
    value = _parsed(body)
    _check(value, incoming)
    if isinstance(value, dict):
        _check_call(value, functions)
        if queue is not None:
            sessions.refuse_others(queue, value.get("event_id"))
        if current_user().name:
            sessions.make_own(value, waits=functions.answers_later)
            body = orjson.dumps(value)
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body) if body else None
    except ValueError as error:
        raise Refused(400, "The request body is not valid JSON.") from error


def _check(value: Any, incoming: Path) -> None:
    level, num_values = [value], 0
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer, incoming)]
        if not level:
            return
        num_values += len(level)
        if num_values > MAX_VALUES:
            raise Refused(400, f"The request holds more than {MAX_VALUES:,} values.")
    raise Refused(400, f"The request is nested deeper than {MAX_DEPTH} levels.")


def _inside(value: Any, incoming: Path) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    if "path" in value and not _was_uploaded(value["path"], incoming):
        raise Refused(400, "This file was not uploaded: choose it again.")
    return list(value.values())


def _check_call(call: dict[str, Any], functions: Functions) -> None:
    """Refuse keys that Gradio uses without checking that they exist."""
    number, session = call.get("fn_index"), call.get("session_hash")
    # In Python True equals 1: it would be a valid function index.
    if number is None:
        if functions.called is not None and functions.called not in functions.names.values():
            raise Refused(404, "There is no function with this name.")
    elif type(number) is not int or number not in functions.names:
        raise Refused(404, "There is no function with this number.")
    _check_values(call.get("data"), functions, number)
    if session is not None and not (isinstance(session, str) and _SESSION.fullmatch(session)):
        raise Refused(400, "A session name has only letters and digits.")


def _check_values(values: Any, functions: Functions, number: int | None) -> None:
    """Refuse too few values, and kinds that a field of the form never has: Gradio checks neither."""
    if number is None:
        number = next((each for each, name in functions.names.items() if name == functions.called), None)
    wanted = functions.inputs.get(number) if number is not None else None
    if wanted is None:
        return
    if not isinstance(values, list) or len(values) < len(wanted):
        raise Refused(400, f"This function takes {len(wanted)} values, as a list named data.")
    for value, component in zip(values, wanted, strict=False):
        if not _fits(value, component):
            raise Refused(400, f"A value of this kind is none of {type(component).__name__}.")


def _fits(value: Any, component: Any) -> bool:
    if isinstance(component, gr.UploadButton):
        return isinstance(value, dict) and isinstance(value.get("path"), str)
    if isinstance(component, gr.Dropdown) and component.multiselect:
        return value is None or (isinstance(value, list) and not any(map(_is_nested, value)))
    is_form_field = isinstance(component, (gr.Dropdown, gr.Textbox, gr.Number, gr.Checkbox))
    return not (is_form_field and _is_nested(value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _was_uploaded(path: Any, incoming: Path) -> bool:
    try:
        return isinstance(path, str) and Path(path).resolve(strict=True).is_relative_to(incoming)
    except (OSError, ValueError):
        return False
