"""Named endpoints of the page, and the sessions of their callers."""

from __future__ import annotations

import functools
import inspect
import secrets
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import gradio as gr
from gradio.queueing import Queue
from gradio.state_holder import StateHolder

from ddp_gui.auth import rights
from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import CLICKS, TooManyError, Workers
from ddp_gui.http.front import Refused, Scope

# Each browser window has one; a program's call has one until its result is fetched.
MAX_SESSIONS = 500
# A user's calls with unfetched results; a result may be all rows of a long list.
MAX_UNFETCHED = 200
HEARTBEAT = "/gradio_api/heartbeat/"
DATA = "/gradio_api/queue/data"
# Occurs in no account name, and in no session name that a browser may choose.
_BETWEEN = "~"


def make_own(call: dict[str, Any], *, waits: bool) -> None:
    """Bind a call's session to the current user; a call whose result is fetched later gets a session."""
    session = call.get("session_hash")
    if current_user().name and (session is not None or waits):
        call["session_hash"] = _own(session or secrets.token_hex(8))


def own_address(scope: Scope, path: str) -> Scope:
    """Rewrite a request for a session's events to the current user's session of this name."""
    if not current_user().name:
        return scope
    if path.startswith(HEARTBEAT):
        front, _, session = str(scope["path"]).rpartition("/")
        address = f"{front}/{_own(session)}"
        return {**scope, "path": address, "raw_path": address.encode()}
    if path == DATA:
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        asked["session_hash"] = _own(asked.get("session_hash", ""))
        return {**scope, "query_string": urlencode(asked).encode()}
    return scope


def refuse_others(queue: Queue, event: Any) -> None:
    """Refuse to fetch or end another user's call.

    Args:
        event: Gradio's event id, as sent by the client.
    Raises:
        Refused: with the same answer as for an unknown id.
    """
    if not isinstance(event, str):
        return
    found = queue.event_ids_to_events.get(event)
    # The event is removed when it is done; its id stays until the result is fetched.
    sessions = [found.session_hash] if found is not None else []
    sessions += [name for name, events in list(queue.pending_event_ids_session.items()) if event in events]
    if any(_person(session) != current_user().name for session in sessions):
        raise Refused(404, "There is nothing here.")


def forget_oldest(queue: Queue, states: StateHolder | None = None) -> None:
    """Drop the oldest sessions of the user who has most: Gradio keeps unfetched results forever."""
    messages = queue.pending_messages_per_session
    while len(messages) > MAX_SESSIONS:
        _forget(queue, _oldest_of_most(messages))
    unfetched = {
        session: len(events)
        for session, events in queue.pending_event_ids_session.items()
        if events and _person(session) == current_user().name
    }
    while sum(unfetched.values()) > MAX_UNFETCHED:
        oldest = next(iter(unfetched))
        del unfetched[oldest]
        _forget(queue, oldest)
    if states is None:
        return
    with states.lock:
        while len(states.session_data) > MAX_SESSIONS:
            session = _oldest_of_most(list(states.session_data))
            del states.session_data[session]
            states.time_last_used.pop(session, None)


def _forget(queue: Queue, session: str) -> None:
    queue.pending_messages_per_session.pop(session, None)
    for number in queue.pending_event_ids_session.pop(session, ()):
        event = queue.event_ids_to_events.pop(number, None)
        if event is not None:
            # Otherwise Gradio sends it progress: without a receiver that ends Gradio's queue for all users.
            event.alive = False


def _oldest_of_most(sessions: Collection[str]) -> str:
    most = Counter(map(_person, sessions)).most_common(1)[0][0]
    return next(session for session in sessions if _person(session) == most)


def _own(session: str) -> str:
    return f"{current_user().name}{_BETWEEN}{session}"


def _person(session: str) -> str:
    name, between, _ = session.partition(_BETWEEN)
    return name if between else ""


Function = Callable[..., Any]


def register(*functions: Function, workers: Workers = CLICKS) -> None:
    """Add functions to the Gradio app under construction as named endpoints, each under its own name."""
    for function in functions:
        # Gradio must not queue or serialise them, even if a program uses its queue: a click must not wait
        # behind another user's.
        asked = as_current_user(_with_checked_kinds(function), workers)
        gr.api(asked, api_name=function.__name__, queue=False, concurrency_limit=None)


def _with_checked_kinds(function: Function) -> Function:
    """Wrap an endpoint so that text, null, lists and objects are accepted only if annotated so."""
    hints = typing.get_type_hints(function)
    kinds = {name: _kinds(hints.get(name, Any)) for name in inspect.signature(function).parameters}

    def check(values: Sequence[Any]) -> None:
        for (name, wanted), value in zip(kinds.items(), values, strict=False):
            kind = next((each for each in (str, list, dict, type(None)) if isinstance(value, each)), float)
            if wanted and kind not in wanted and not (kind is str and float in wanted):
                raise gr.Error(f"{name} is {_NAMES[kind]}, which is not allowed", print_exception=False)

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
    """Return the kinds of JSON values that an annotation allows; empty if it allows all."""
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

    Gradio runs queued calls in its own tasks, which do not inherit context variables; they do have the
    request.
    """

    @functools.wraps(function)
    async def asked(asked_request: gr.Request, *values: Any) -> Any:
        with rights.asked_by(_sender_of(asked_request)):
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


def _sender_of(request: gr.Request) -> rights.Person:
    scope = request.request.scope if request.request is not None else {}
    sender = scope.get(rights.SCOPE_KEY)
    return sender if isinstance(sender, rights.Person) else rights.current_user()
