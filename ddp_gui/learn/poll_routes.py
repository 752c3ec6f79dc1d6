"""Endpoints and routes of polls, including those that phones reach without an account."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass
from typing import Any

import segno
from fastapi import Request
from fastapi.responses import Response

from ddp_gui.auth import rights
from ddp_gui.background.workers import CLICKS, Router
from ddp_gui.gradio_routes.gate import route_path
from ddp_gui.http import shell
from ddp_gui.http.front import App, Receive, Refused, Scope, Send
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.polls import PollSession, PollSessions
from ddp_gui.operations import Route, operation
from ddp_gui.options import Options, is_only_here
from ddp_gui.run.stream import EventStream
from trainers.files import installation

# Addresses reserved for documentation. A UDP connect to them sends no packet; it only selects the outgoing
# interface.
_ANYWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
# Maximum version of a QR code, 57 × 57 modules: finer codes are hard to read from a projector.
MAX_QR_CHARACTERS = 213


@dataclass(frozen=True, kw_only=True)
class Address:
    """The page's address for other machines.

    Attributes:
        url: None if other machines cannot reach the page; `problem` then describes the remedy.
    """

    url: str | None
    problem: str


def address_of_page(options: Options, scheme: str, host: str, port: int) -> Address:
    """Return the URL of the page's root, with a trailing slash.

    Args:
        scheme: scheme of the request.
        host: host of the request, with or without a port.
        port: port on which the page listens.
    """
    name = host.rsplit(":", 1)[0].strip("[]") if not host.endswith("]") else host.strip("[]")
    prefix = f"{options.root_path}/"
    if options.allowed_hosts:
        # The page is behind a proxy or has a DNS name, so use the host name that clients use.
        allowed = {allowed_host.lower() for allowed_host in options.allowed_hosts}
        shown = host if name.lower() in allowed else options.allowed_hosts[0]
        return Address(url=f"{scheme}://{shown}{prefix}", problem="")
    if not is_only_here(name):
        return Address(url=f"{scheme}://{host}{prefix}", problem="")
    if is_only_here(options.host):
        return Address(url=None, problem=_reachability_advice(options))
    outside = options.host if options.host not in ("0.0.0.0", "::", "") else own_address()  # noqa: S104
    if outside is None:
        problem = "This machine has no network address at the moment, so phones cannot reach this page."
        return Address(url=None, problem=problem)
    shown = f"[{outside}]" if ":" in outside else outside
    return Address(url=f"{scheme}://{shown}:{port}{prefix}", problem="")


def own_address() -> str | None:
    """Return the address at which other machines reach this one; None without a network."""
    for family, target in zip((socket.AF_INET, socket.AF_INET6), _ANYWHERE, strict=True):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            address = str(probe.getsockname()[0])
            if not is_only_here(address):
                return address
    return None


def _reachability_advice(options: Options) -> str:
    option = "--auth-file accounts.json" if options.has_login else "--polls"
    return (
        "This page listens on this machine only, so phones cannot reach it. Start it for other devices "
        f"with: {installation.command()} --host 0.0.0.0 {option} (docs/class.md)."
    )


_POLL = r"/live/polls/[a-z0-9]{1,20}"
_READ = re.compile(
    rf"/poll|{_POLL}|{_POLL}/stream|/live/me|/live/glossary|/{re.escape(shell.TYPEFACE)}"
    r"|/live/assets/(?:css|js|icons)(?:/[\w-]+)+\.(?:css|js|svg)",
    re.ASCII,
)
_WRITE = re.compile(rf"{_POLL}/answer", re.ASCII)
NOT_FOR_YOU = "This page belongs to another user. Open a poll with its code."


class PhoneGate:
    """ASGI middleware that limits clients without a login to polls; they cannot reach Gradio."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refused: if the request does not belong to a poll.
        """
        if scope["type"] != "http":
            return
        pattern = {"GET": _READ, "HEAD": _READ, "POST": _WRITE}.get(scope["method"])
        if pattern is None or not pattern.fullmatch(route_path(scope)):
            raise Refused(403, NOT_FOR_YOU)
        scope[rights.SCOPE_KEY] = rights.NOBODY
        with rights.acting_as(rights.NOBODY):
            await self._app(scope, receive, send)


MAX_ANSWER_BYTES = 2_000


@dataclass
class PollsApi:
    """Endpoints for polls. Results are JSON values."""

    _sessions: PollSessions
    _library: Library

    @operation(method_checks="teacher")
    async def open_poll(self, lesson: str) -> dict[str, Any]:
        """Open a poll about a lesson. Teachers only; without logins, polls must be enabled."""
        poll = self._sessions.open(await CLICKS.run(self._library.find, lesson))
        return {"poll_id": poll.poll_id, "state": poll.state}

    # The route is for phones, which cannot reach Gradio without a login.
    @operation(
        route=Route(
            path="/live/polls/{poll}/answer",
            max_bytes=MAX_ANSWER_BYTES,
            not_an_object="an answer must be an object with the fields answer and token",
        )
    )
    async def answer_poll(self, poll: str, answer: Any, token: str = "") -> dict[str, Any]:
        """Answer a poll once, with the index of a choice (from 0) or the values of a curve.

        Without logins, `token` identifies the browser: 32 random hexadecimal digits.
        """
        answered = self._sessions.answer(poll, answer, str(token))
        return {"poll_id": answered.poll_id, "state": answered.state, "num_answers": len(answered.answers)}

    @operation(method_checks="teacher")
    async def change_poll(self, poll: str, action: str) -> dict[str, Any]:
        """Change a poll: close, reopen, start (its runs) or end. Teachers only."""
        changed = await self._sessions.change(poll, action)
        return {"poll_id": changed.poll_id, "state": changed.state, "run_ids": changed.run_ids}


# Fields of a question that reveal its answer.
_SECRETS = ("right", "because", "measured")


def make_router(sessions: PollSessions, options: Options) -> Router:
    """Return the routes below `/live/polls`."""
    router = Router(prefix="/live/polls")

    @router.get("")
    async def polls() -> dict[str, Any]:
        return {"may_open": sessions.may_open(), "has_login": sessions.has_login, "polls": sessions.listed()}

    @router.get("/{poll_id}")
    async def poll(poll_id: str, early: bool = False) -> dict[str, Any]:
        return await _describe(sessions, sessions.find(poll_id), shows_early=early and sessions.may_open())

    @router.get("/{poll_id}/stream")
    async def stream(poll_id: str, early: bool = False) -> Response:
        return EventStream(
            sessions.messages(sessions.find(poll_id), shows_early=early and sessions.may_open())
        )

    @router.get("/{poll_id}/people")
    async def people(poll_id: str) -> dict[str, Any]:
        return {"people": sessions.people(sessions.find(poll_id))}

    @router.get("/{poll_id}/qr")
    async def code(poll_id: str, request: Request) -> dict[str, Any]:
        session = sessions.find(poll_id)
        server = request.scope.get("server") or ("", options.port)
        host, port = request.headers.get("host", ""), server[1] or options.port
        page = address_of_page(options, request.url.scheme, host, port)
        url = None if page.url is None else f"{page.url}poll?id={session.poll.poll_id}"
        return {"address": url, "problem": page.problem, "rows": _rows(url)}

    return router


async def _describe(sessions: PollSessions, session: PollSession, *, shows_early: bool) -> dict[str, Any]:
    hidden = () if session.poll.state == "revealed" else _SECRETS
    question = {name: value for name, value in session.poll.question.items() if name not in hidden}
    own_answer = session.poll.answers.get(rights.current_user().name) if sessions.has_login else None
    return sessions.describe(session, shows_early=shows_early) | {
        "title": session.poll.title,
        "opened_by": session.poll.opened_by,
        "question": question,
        "mine": None if own_answer is None else own_answer.value,
        "outcome": await sessions.outcome(session),
    }


def _rows(url: str | None) -> list[str]:
    """Return the rows of the QR code, 1 for dark; empty without a URL, or if the code would be too fine."""
    if url is None or len(url) > MAX_QR_CHARACTERS:
        return []
    grid = segno.make_qr(url, error="m").matrix
    return ["".join("1" if is_dark else "0" for is_dark in row) for row in grid]
