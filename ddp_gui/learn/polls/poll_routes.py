"""The live routes of polls: all of them, one with its question, its news, who predicted what, its QR code."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import Response

from ddp_gui.auth import current_user
from ddp_gui.auth.rights import NotAllowedError
from ddp_gui.background.workers import Router
from ddp_gui.learn.polls import address, qr
from ddp_gui.learn.polls.rooms import NoSuchPollError, Room, Rooms
from ddp_gui.options import Options
from ddp_gui.run.follow import EventStream

# What of a question would tell how it ends.
_SECRETS = ("right", "because")


def make_router(rooms: Rooms, options: Options) -> Router:
    """Return the routes below `/live/polls`."""
    router = Router(prefix="/live/polls")

    def room_of(poll_id: str) -> Room:
        try:
            return rooms.find(poll_id)
        except NoSuchPollError as error:
            raise HTTPException(status_code=404, detail=str(error)) from error

    @router.get("")
    async def polls() -> dict[str, Any]:
        return {"may_open": rooms.may_open(), "has_login": rooms.has_login, "polls": rooms.listed()}

    @router.get("/{poll_id}")
    async def poll(poll_id: str) -> dict[str, Any]:
        room = room_of(poll_id)
        hidden = () if room.poll.state == "revealed" else _SECRETS
        question = {name: value for name, value in room.poll.question.items() if name not in hidden}
        mine = room.poll.answers.get(current_user.current_user().name) if rooms.has_login else None
        return rooms.describe(room, shows_all=_shows_all(rooms)) | {
            "title": room.poll.title,
            "opened_by": room.poll.opened_by,
            "question": question,
            "mine": None if mine is None else mine.value,
        }

    @router.get("/{poll_id}/stream")
    async def stream(poll_id: str) -> Response:
        return EventStream(rooms.messages(room_of(poll_id), shows_all=_shows_all(rooms)))

    @router.get("/{poll_id}/people")
    async def people(poll_id: str) -> dict[str, Any]:
        room = room_of(poll_id)
        try:
            return {"people": rooms.people(room)}
        except NotAllowedError as error:
            raise HTTPException(status_code=403, detail=str(error)) from error

    @router.get("/{poll_id}/qr")
    async def code(poll_id: str, request: Request) -> dict[str, Any]:
        found = _address(poll_id, request)
        rows = [] if found.url is None else _rows(found.url)
        return {"address": found.url, "problem": found.problem, "rows": rows}

    def _address(poll_id: str, request: Request) -> address.Address:
        room = room_of(poll_id)
        server = request.scope.get("server") or ("", options.port)
        host = request.headers.get("host", "")
        page = address.of_page(options, request.url.scheme, host, server[1] or options.port)
        if page.url is None:
            return page
        return address.Address(url=f"{page.url}poll?id={room.poll.poll_id}", problem="")

    return router


def _shows_all(rooms: Rooms) -> bool:
    """Tell whether the current user sees what comes in before the poll is closed."""
    return rooms.may_open()


def _rows(text: str) -> list[str]:
    try:
        grid = qr.encode(text)
    except ValueError:
        return []  # a host name of that length is shown as it is
    return ["".join("1" if is_dark else "0" for is_dark in row) for row in grid]
