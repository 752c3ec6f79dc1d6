"""The sessions of Gradio's callers. Each session belongs to one user, and their number is limited."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qsl, urlencode

from gradio.queueing import Queue
from gradio.state_holder import StateHolder

from ddp_gui.auth.rights import current_user
from ddp_gui.http.front import Refused, Scope

# Maximum number of sessions: each browser window has one, and a program's call has one until its result is
# fetched.
MAX_SESSIONS = 500
# Maximum number of a user's calls with unfetched results, because a result may be a long list.
MAX_UNFETCHED = 200
HEARTBEAT_PATH = "/gradio_api/heartbeat/"
DATA_PATH = "/gradio_api/queue/data"
# Separator that neither account names nor session names from browsers may contain.
_SEPARATOR = "~"


def bind_to_user(call: dict[str, Any], *, waits: bool) -> None:
    """Bind a call's session to the current user. A call whose result is fetched later gets a session."""
    session = call.get("session_hash")
    if current_user().name and (session is not None or waits):
        call["session_hash"] = _user_session(session or secrets.token_hex(8))


def rewrite_to_own_session(scope: Scope, path: str) -> Scope:
    """Rewrite a request for a session's events to the current user's session of this name."""
    if not current_user().name:
        return scope
    if path.startswith(HEARTBEAT_PATH):
        prefix, _, session = str(scope["path"]).rpartition("/")
        address = f"{prefix}/{_user_session(session)}"
        return {**scope, "path": address, "raw_path": address.encode()}
    if path == DATA_PATH:
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        query["session_hash"] = _user_session(query.get("session_hash", ""))
        return {**scope, "query_string": urlencode(query).encode()}
    return scope


def refuse_foreign_call(queue: Queue, event: Any) -> None:
    """Refuse to fetch or end another user's call.

    Args:
        event: Gradio's event id, as sent by the client.
    Raises:
        Refused: with the same answer as for an unknown id.
    """
    if not isinstance(event, str):
        return
    stored_event = queue.event_ids_to_events.get(event)
    # A finished event is removed, but its id stays until the result is fetched.
    sessions = [stored_event.session_hash] if stored_event is not None else []
    sessions += [name for name, events in list(queue.pending_event_ids_session.items()) if event in events]
    if any(_session_user(session) != current_user().name for session in sessions):
        raise Refused(404, "Not found.")


def forget_oldest(queue: Queue, states: StateHolder | None = None) -> None:
    """Drop the oldest sessions of the user with the most, because Gradio keeps unfetched results forever."""
    messages = queue.pending_messages_per_session
    while len(messages) > MAX_SESSIONS:
        _forget(queue, _oldest_session_of_busiest_user(messages))
    unfetched = {
        session: len(events)
        for session, events in queue.pending_event_ids_session.items()
        if events and _session_user(session) == current_user().name
    }
    while sum(unfetched.values()) > MAX_UNFETCHED:
        oldest = next(iter(unfetched))
        del unfetched[oldest]
        _forget(queue, oldest)
    if states is None:
        return
    with states.lock:
        while len(states.session_data) > MAX_SESSIONS:
            session = _oldest_session_of_busiest_user(list(states.session_data))
            del states.session_data[session]
            states.time_last_used.pop(session, None)


def _forget(queue: Queue, session: str) -> None:
    queue.pending_messages_per_session.pop(session, None)
    for number in queue.pending_event_ids_session.pop(session, ()):
        event = queue.event_ids_to_events.pop(number, None)
        if event is not None:
            # Otherwise Gradio sends it progress: without a receiver that ends Gradio's queue for all users.
            event.alive = False


def _oldest_session_of_busiest_user(sessions: Collection[str]) -> str:
    busiest_user = Counter(map(_session_user, sessions)).most_common(1)[0][0]
    return next(session for session in sessions if _session_user(session) == busiest_user)


def _user_session(session: str) -> str:
    return f"{current_user().name}{_SEPARATOR}{session}"


def _session_user(session: str) -> str:
    name, separator, _ = session.partition(_SEPARATOR)
    return name if separator else ""
