"""The live routes of polls: all of them, one with its question, its news, who predicted what, its QR code."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import Response

from ddp_gui.auth import current_user
from ddp_gui.auth.rights import NotAllowedError
from ddp_gui.background.workers import Router
from ddp_gui.http import json_body
from ddp_gui.learn.polls import address, qr
from ddp_gui.learn.polls.rooms import NoSuchPollError, Room, Rooms
from ddp_gui.options import Options
from ddp_gui.run.follow import EventStream

MAX_ANSWER_BYTES = 2_000
# What of a question would tell how it ends.
_SECRETS = ("right", "because", "measured")


def make_router(rooms: Rooms, options: Options) -> Router:
    """Return the routes below `/live/polls`."""
    router = Router(prefix="/live/polls")

    @router.get("")
    async def polls() -> dict[str, Any]:
        return {"may_open": rooms.may_open(), "has_login": rooms.has_login, "polls": rooms.listed()}

    @router.get("/{poll_id}")
    async def poll(poll_id: str, early: bool = False) -> dict[str, Any]:
        return await _described(rooms, _room(rooms, poll_id), shows_early=early and rooms.may_open())

    @router.get("/{poll_id}/stream")
    async def stream(poll_id: str, early: bool = False) -> Response:
        return EventStream(rooms.messages(_room(rooms, poll_id), shows_early=early and rooms.may_open()))

    @router.post("/{poll_id}/answer", include_in_schema=False)
    async def answer(poll_id: str, request: Request) -> dict[str, Any]:
        """Take an answer without Gradio, which strangers do not reach."""
        return _answered(rooms, _room(rooms, poll_id), await json_body.read(request, MAX_ANSWER_BYTES))

    @router.get("/{poll_id}/people")
    async def people(poll_id: str) -> dict[str, Any]:
        room = _room(rooms, poll_id)
        try:
            return {"people": rooms.people(room)}
        except NotAllowedError as error:
            raise HTTPException(status_code=403, detail=str(error)) from error

    @router.get("/{poll_id}/qr")
    async def code(poll_id: str, request: Request) -> dict[str, Any]:
        room = _room(rooms, poll_id)
        server = request.scope.get("server") or ("", options.port)
        host, port = request.headers.get("host", ""), server[1] or options.port
        page = address.of_page(options, request.url.scheme, host, port)
        url = None if page.url is None else f"{page.url}poll?id={room.poll.poll_id}"
        return {"address": url, "problem": page.problem, "rows": _rows(url)}

    return router


def _room(rooms: Rooms, poll_id: str) -> Room:
    try:
        return rooms.find(poll_id)
    except NoSuchPollError as error:
        raise HTTPException(status_code=404, detail=str(error)) from error


async def _described(rooms: Rooms, room: Room, *, shows_early: bool) -> dict[str, Any]:
    hidden = () if room.poll.state == "revealed" else _SECRETS
    question = {name: value for name, value in room.poll.question.items() if name not in hidden}
    mine = room.poll.answers.get(current_user.current_user().name) if rooms.has_login else None
    return rooms.describe(room, shows_early=shows_early) | {
        "title": room.poll.title,
        "opened_by": room.poll.opened_by,
        "question": question,
        "mine": None if mine is None else mine.value,
        "outcome": await rooms.outcome(room),
    }


def _answered(rooms: Rooms, room: Room, body: bytes) -> dict[str, Any]:
    try:
        told = json_body.parse(body)
        if not isinstance(told, dict):
            raise ValueError("an answer is an object of answer and token")
        poll = rooms.answer(room.poll.poll_id, told.get("answer"), str(told.get("token", "")))
    except ValueError as error:
        raise HTTPException(status_code=422, detail=str(error)) from error
    return {"poll_id": poll.poll_id, "state": poll.state, "num_answers": len(poll.answers)}


def _rows(url: str | None) -> list[str]:
    """Return the rows of an address's code; none where it is too long for one, and shown as it is."""
    try:
        grid = qr.encode(url) if url is not None else []
    except ValueError:
        return []
    return ["".join("1" if is_dark else "0" for is_dark in row) for row in grid]
