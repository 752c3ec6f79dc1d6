"""Validates values sent to Gradio's functions: JSON of limited depth that contains only uploaded files.

Gradio treats every object with a path as a file, for any component. It would copy the file from this machine,
or fetch it from another machine.
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

from ddp_gui.auth.rights import current_user, is_plain_path
from ddp_gui.background import loop_delay
from ddp_gui.background.workers import CLICKS
from ddp_gui.gradio_routes import callers
from ddp_gui.http import front
from ddp_gui.http.front import Message, Receive, Refused, Scope

MAX_DEPTH = 40
# Maximum number of files. The page sends one, and each is checked on the disk.
MAX_FILES = 4
# Functions with long values (run ids, files of a script). Other calls are far below `front.MAX_BYTES`.
LONG_CALLS = (
    "delete_runs", "restore_runs", "empty_bin", "read_script", "open_script", "start_script",
    "start_code_lesson",
)  # fmt: skip
# Maximum number of parts of a long call, because a script has at most 200 files.
MAX_PARTS_OF_A_LONG_CALL = 500
_SESSION = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Functions:
    """Gradio's functions: names by number, and the name in the request's URL, if any."""

    names: Mapping[int, str | bool | None]
    called: str | None = None
    # The components whose values each function takes.
    inputs: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    # True if another request fetches the result.
    answers_later: bool = False


async def read_checked_body(
    receive: Receive,
    incoming: Path,
    functions: Functions,
    queue: Queue | None = None,
    scope: Scope | None = None,
) -> Receive:
    """Read and check a request's body; return a `receive` that replays it, bound to the sender's session.

    Args:
        incoming: the folder of the sender's new uploads.
        queue: Gradio's queue of calls.
        scope: receives the name of the function, for the delays of the event loop.
    Raises:
        Refused: if the body is not JSON, is nested too deep or too large, or contains a file that was not
            uploaded, or an invalid function or session.
    """
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
    body = b"".join(chunks)
    value = _parse(body)
    name = _check_call(value, functions) if isinstance(value, dict) else None
    if scope is not None and name is not None:
        scope[loop_delay.FUNCTION] = name
    if len(body) > front.MAX_BYTES and name not in LONG_CALLS:
        raise Refused(413, f"This request is too large: at most {front.MAX_BYTES:,} bytes are accepted.")
    files = _files_in(value)
    if files and not await CLICKS.run(_were_uploaded, files, incoming):
        raise Refused(400, "This file was not uploaded: choose it again.")
    if isinstance(value, dict):
        if queue is not None:
            callers.refuse_foreign_call(queue, value.get("event_id"))
        if current_user().name:
            callers.bind_to_user(value, waits=functions.answers_later)
            body = orjson.dumps(value)
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _parse(body: bytes) -> Any:
    # Large requests are lists of ids or long texts, with few other parts.
    max_parts = front.MAX_PARTS if len(body) <= front.MAX_BYTES else MAX_PARTS_OF_A_LONG_CALL
    try:
        return front.parse_json_body(body, max_parts=max_parts)
    except ValueError as error:
        raise Refused(400, str(error)) from error


def _files_in(value: Any) -> list[Any]:
    """Return the path of each file in a value.

    Raises:
        Refused: if the value is nested too deep, or contains too many files.
    """
    level, files = [value], []
    for _ in range(MAX_DEPTH):
        files += [inner["path"] for inner in level if isinstance(inner, dict) and "path" in inner]
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            break
    else:
        raise Refused(400, f"The request is nested deeper than {MAX_DEPTH} levels.")
    if len(files) > MAX_FILES:
        raise Refused(400, f"The request names {len(files):,} files: at most {MAX_FILES} are accepted.")
    return files


def _children(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _check_call(call: dict[str, Any], functions: Functions) -> str | None:
    """Refuse invalid keys that Gradio uses without checking them; return the name of the function."""
    number, session = call.get("fn_index"), call.get("session_hash")
    if session is not None and not (isinstance(session, str) and _SESSION.fullmatch(session)):
        raise Refused(400, "A session name must consist of letters and digits.")
    if number is None:
        if functions.called is not None and functions.called not in functions.names.values():
            raise Refused(404, "No function has this name.")
        _check_values(call.get("data"), functions, None)
        return functions.called
    # Exclude True, which equals 1 in Python and would be a valid index.
    if type(number) is not int or number not in functions.names:
        raise Refused(404, "No function has this number.")
    # A call that cancels another call (/cancel) has a function but no values.
    if "data" in call:
        _check_values(call["data"], functions, number)
    return str(functions.names[number])


def _check_values(values: Any, functions: Functions, number: int | None) -> None:
    """Refuse missing values and impossible types, because Gradio does not check these."""
    if number is None:
        number = next((index for index, name in functions.names.items() if name == functions.called), None)
    components = functions.inputs.get(number) if number is not None else None
    if components is None:
        return
    if not isinstance(values, list) or len(values) < len(components):
        raise Refused(400, f"This function takes {len(components)} values, as a list named data.")
    for value, component in zip(values, components, strict=False):
        if not _is_valid(value, component):
            raise Refused(400, f"This value is not valid for {type(component).__name__}.")


def _is_valid(value: Any, component: Any) -> bool:
    if isinstance(component, gr.UploadButton):
        return isinstance(value, dict) and isinstance(value.get("path"), str)
    if isinstance(component, gr.Dropdown) and component.multiselect:
        return value is None or (isinstance(value, list) and not any(map(_is_nested, value)))
    is_form_field = isinstance(component, (gr.Dropdown, gr.Textbox, gr.Number, gr.Checkbox))
    return not (is_form_field and _is_nested(value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _were_uploaded(paths: list[Any], incoming: Path) -> bool:
    return all(is_plain_path(path) and _is_inside(path, incoming) for path in paths)


def _is_inside(path: str, incoming: Path) -> bool:
    # Compare the text first, so that no other part of the disk is accessed.
    try:
        return Path(path).is_relative_to(incoming) and Path(path).resolve(strict=True).is_relative_to(
            incoming
        )
    except (OSError, ValueError):
        return False
