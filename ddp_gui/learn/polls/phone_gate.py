"""What strangers may ask of a page without a login that has polls: a poll's question, and to answer it."""

from __future__ import annotations

import re

from ddp_gui.auth import current_user
from ddp_gui.gradio_routes.allowlist import route_path
from ddp_gui.http import static
from ddp_gui.http.asgi import App, Receive, Refused, Scope, Send

_POLL = r"/live/polls/[a-z0-9]{1,20}"
_READ = re.compile(
    rf"/poll|{_POLL}|{_POLL}/stream|/live/me|/live/glossary|/{re.escape(static.TYPEFACE)}"
    r"|/live/assets/(?:css|js|icons)(?:/[\w-]+)+\.(?:css|js|svg)",
    re.ASCII,
)
_WRITE = re.compile(rf"{_POLL}/answer", re.ASCII)
NOT_FOR_YOU = "This page belongs to somebody else. Open a poll by its code."


class PhoneGate:
    """ASGI middleware in front of everything that strangers reach; Gradio is nothing of that."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refused: when it is for anything but a poll.
        """
        if scope["type"] != "http":
            return
        wanted = {"GET": _READ, "HEAD": _READ, "POST": _WRITE}.get(scope["method"])
        if wanted is None or not wanted.fullmatch(route_path(scope)):
            raise Refused(403, NOT_FOR_YOU)
        scope[current_user.SCOPE_KEY] = current_user.NOBODY
        with current_user.asked_by(current_user.NOBODY):
            await self._app(scope, receive, send)
